"""A client that speaks SQL to the schema pgwf, as psql or any driver would, and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader

Row = dict[str, Any]
Connect = Callable[[], "Client"]
"""One more session on the same database."""


class _AnyMoment(TimestamptzLoader):
    """As a text where Python has no word for it, like the time of a lease that nobody holds."""

    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class Refusal(NamedTuple):
    """What a statement was refused with."""

    code: str
    message: str
    detail: str | None = None


class Client:
    """One session, in autocommit. What the server remarks and what it notifies of is kept."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.remarks: list[str] = []
        self._heard: list[tuple[str, str]] = []
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, **options)
        self.connection.adapters.register_loader("timestamptz", _AnyMoment)
        self.connection.add_notice_handler(lambda notice: self.remarks.append(notice.message_primary or ""))
        self.connection.add_notify_handler(lambda heard: self._heard.append((heard.channel, heard.payload)))

    def close(self) -> None:
        self.connection.close()

    def rows(self, statement: LiteralString | sql.Composed, *values: object) -> list[Row]:
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def row(self, statement: LiteralString | sql.Composed, *values: object) -> Row:
        (row,) = self.rows(statement, *values)
        return row

    def value(self, statement: LiteralString | sql.Composed, *values: object) -> Any:
        (value,) = self.row(statement, *values).values()
        return value

    def call(self, function: str, *values: object, **named: object) -> list[Row]:
        """The rows that a function of pgwf answers with."""
        return self.rows(_call(function, len(values), named), *values, *named.values())

    def answer(self, function: str, *values: object, **named: object) -> Any:
        """The one value that a function of pgwf answers with."""
        (row,) = self.call(function, *values, **named)
        (value,) = row.values()
        return value

    def refusal(self, function: str, *values: object, **named: object) -> Refusal:
        """How a function of pgwf refuses. A transaction around it goes on."""
        try:
            with self.connection.transaction():
                answer = self.call(function, *values, **named)
        except psycopg.Error as problem:
            return refusal_of(problem)
        raise AssertionError(f"pgwf.{function} did not refuse but answered {answer}")

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction, or a part of one, that is taken back in the end."""
        with self.connection.transaction(force_rollback=True):
            yield

    def advance(self, seconds: float) -> None:
        """Let time pass in this database; its owner may."""
        self.rows(
            "UPDATE pgwf.settings SET clock_offset = clock_offset + make_interval(secs => %s)", float(seconds)
        )

    def heard(self) -> list[tuple[str, str]]:
        """The notifications, as channel and payload, since the last time they were asked for."""
        self.rows("SELECT 1")  # the server hands over what there is with the next answer
        heard, self._heard[:] = sorted(self._heard), []
        return heard

    # The verbs, with the parameters that most tests do not care about

    def submit(self, job_id: str, need: str = "work", **named: object) -> Row:
        (row,) = self.call("submit_job", job_id, "producer", need, **named)
        return row

    def submit_in(self, delay: str, job_id: str, need: str = "work") -> None:
        """A job whose time has not come."""
        self.rows(
            "SELECT pgwf.submit_job(%s, 'producer', %s, p_available_at => pgwf._now() + %s)",
            job_id,
            need,
            delay,
        )

    def claim(self, need: str = "work", worker: str = "worker", seconds: int = 60) -> Row:
        """The lease of the one job that is there to be had."""
        (row,) = self.call("get_work", worker, [need], seconds, p_listen=False)
        return row

    def claims(self, *needs: str, limit: int = 100) -> list[str]:
        """The ids of all jobs of these needs that are to be had."""
        got = self.call("get_work", "worker", list(needs or ["work"]), 60, limit, p_listen=False)
        return [row["job_id"] for row in got]

    def held(self, job_id: str, need: str = "work", **named: object) -> str:
        """A new job that a worker holds: its lease."""
        self.submit(job_id, need, **named)
        lease = self.claim(need)
        assert lease["job_id"] == job_id
        return str(lease["lease_id"])

    def completed(self, job_id: str, need: str = "work") -> None:
        """A new job that has ended well."""
        assert self.answer("complete_job", job_id, self.held(job_id, need), "worker")

    def cancel(self, job_id: str, by: str = "canceller", reason: str | None = None, **named: object) -> Row:
        (row,) = self.call("cancel_job", job_id, by, reason, **named)
        return row

    def archive(self, worker: str = "sweeper", *limit: int) -> int:
        return int(self.answer("archive_cancelled_jobs", worker, *limit))

    # What there is

    def job(self, job_id: str) -> Row:
        """The row of a live job."""
        return self.row("SELECT * FROM pgwf.jobs WHERE job_id = %s", job_id)

    def archived(self, job_id: str) -> Row:
        return self.row("SELECT * FROM pgwf.jobs_archive WHERE job_id = %s", job_id)

    def status(self, job_id: str) -> str:
        return str(self.value("SELECT status FROM pgwf.jobs_with_status WHERE job_id = %s", job_id))

    def friendly(self, job_id: str) -> Row:
        return self.row("SELECT * FROM pgwf.jobs_friendly_status WHERE job_id = %s", job_id)

    def contents(self) -> dict[str, str]:
        """Every table as one short text, for telling whether anything changed."""
        tables = self.rows(
            "SELECT relname AS name FROM pg_class WHERE relnamespace = 'pgwf'::regnamespace AND relkind = 'r'"
        )
        each = (
            sql.SQL("SELECT {}, md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {} t").format(
                table["name"], sql.Identifier("pgwf", table["name"])
            )
            for table in tables
        )
        rows = self.rows(
            sql.SQL("SELECT * FROM ({}) AS t (name, digest)").format(sql.SQL(" UNION ALL ").join(each))
        )
        return {row["name"]: row["digest"] for row in rows}

    def trace(self, event_type: str | None = None, job_id: str | None = None) -> list[Row]:
        """What was traced, in order, of this kind or of this job or of both."""
        return self.rows(
            "SELECT * FROM pgwf.jobs_trace WHERE event_type = coalesce(%s, event_type)"
            " AND (%s::text IS NULL OR job_id = %s) ORDER BY trace_id",
            event_type,
            job_id,
            job_id,
        )

    def events(self, job_id: str) -> list[str]:
        return [row["event_type"] for row in self.trace(job_id=job_id)]


def _call(function: str, positional: int, named: Row) -> sql.Composed:
    places: Sequence[sql.Composable] = [
        *[sql.SQL("%s")] * positional,
        *(sql.SQL("{} => %s").format(sql.Identifier(name)) for name in named),
    ]
    return sql.SQL("SELECT * FROM {}({})").format(
        sql.Identifier("pgwf", function), sql.SQL(", ").join(places)
    )


def refusal_of(problem: psycopg.Error) -> Refusal:
    said = problem.diag
    return Refusal(problem.sqlstate or "", said.message_primary or str(problem), said.message_detail)
