"""One file per verb; every test runs on every engine."""
