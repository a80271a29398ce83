"""PostgreSQL: the schema pgwf in SQL, and the engine that calls it."""
