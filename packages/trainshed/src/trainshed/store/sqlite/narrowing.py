"""Filters a list of works (jobs, tuning jobs, pipelines) without reading their records (ADR 3).

The search has three stages:

- The newest works are checked. For a frequent condition, they are enough to fill a page.
- SQLite searches by an index, in a limited number of steps of its virtual machine. This finds the works for a
  rare condition.
- All works are checked from the newest on. Each call checks a limited number of works.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final, assert_never

from msgspec import Struct, field

from trainshed.core.names import Api, JobUid
from trainshed.store.codec import ABOVE_ALL_UIDS, KINDS
from trainshed.store.port import (
    Column,
    Condition,
    Contains,
    Created,
    Either,
    Equal,
    Every,
    HasLabel,
    JobQuery,
)
from trainshed.store.sqlite.connections import Parameters

_EVERYWHERE: Final = "SELECT uid FROM works INDEXED BY works_by_client WHERE parent_uid = 0 AND uid < :below"
_OF_API: Final = (
    "SELECT uid FROM works INDEXED BY works_of_projects "
    "WHERE parent_uid = 0 AND project_id = :project_id AND api = '{}' AND uid < :below"
)
_OF_COLLECTION: Final = (
    "SELECT uid FROM works INDEXED BY {} WHERE {} AND project_id = :project_id AND api = 'vertex' "
    "AND location = :location AND kind = :kind AND uid < :below"
)


class Walk(Struct, frozen=True):
    """Selects the jobs, tuning jobs and pipelines of a list with UIDs lower than the parameter `:below`."""

    #: A statement that selects the UIDs in the list, newest first. Callers may append a LIMIT.
    sql: str
    #: An SQL expression that is true if a row of the table `works` is in the list.
    test: str
    #: Parameters for `sql` and `test`. Also `limit`, the maximum number of UIDs in the result.
    parameters: Parameters


def walk(query: JobQuery) -> Walk:
    """Return the `Walk` that selects the jobs, tuning jobs and pipelines of `query`."""
    parameters: Parameters = {"below": query.after or ABOVE_ALL_UIDS, "limit": query.limit}
    if query.project_id is None:
        return Walk(f"{_EVERYWHERE} ORDER BY uid DESC", "works.parent_uid = 0", parameters)
    parameters["project_id"] = query.project_id
    tests = ["works.project_id = :project_id"]
    if query.collection is not None:
        parameters |= {"location": query.location, "kind": KINDS[query.collection].value}
        tests += ["works.api = 'vertex'", "works.location = :location", "works.kind = :kind"]
        parts = [
            _OF_COLLECTION.format("works_of_clients", "parent_uid = 0"),
            _OF_COLLECTION.format("works_of_works", "parent_uid <> 0"),
        ]
    else:
        apis = tuple(Api) if query.api is None else (query.api,)
        tests += ["works.parent_uid = 0"] + [f"works.api = '{query.api}'"] * (query.api is not None)
        parts = [_OF_API.format(api) for api in apis]
    return Walk(f"{' UNION ALL '.join(parts)} ORDER BY uid DESC", " AND ".join(tests), parameters)


FEW_NEWEST: Final = 1_000
"""Number of the newest jobs, tuning jobs and pipelines that are checked before an index is tried. This takes
about 0.5 ms."""
MAX_STEPS: Final = 100_000
"""Maximum number of steps of SQLite's virtual machine for a search by index. This takes about 2 ms."""
MAX_CHECKED_WORKS: Final = 50_000
"""Maximum number of jobs, tuning jobs and pipelines that one call checks. This takes 10 to 25 ms."""


class FilteredPage(Struct, frozen=True):
    """One page of a filtered list."""

    #: UIDs of the jobs, tuning jobs and pipelines that meet the condition, newest first. There are at most
    #: `limit`.
    uids: tuple[JobUid, ...]
    #: Start of the next page: entries below this UID were not checked yet. None = all entries were checked.
    next_after: JobUid | None


def filter_works(connection: sqlite3.Connection, through: Walk, where: Condition) -> FilteredPage:
    """Return the next jobs, tuning jobs and pipelines of a list that meet `where`."""
    limit = int(through.parameters["limit"])
    uids = _among_newest(connection, through, where, FEW_NEWEST)
    if len(uids) == limit:
        return FilteredPage(uids, uids[-1])
    if (indexed := _by_index(connection, through, where)) is not None:
        return FilteredPage(indexed, indexed[-1] if len(indexed) == limit else None)
    uids = _among_newest(connection, through, where, MAX_CHECKED_WORKS)
    if len(uids) == limit:
        return FilteredPage(uids, uids[-1])
    ((looked_at, lowest),) = connection.execute(
        f"SELECT count(*), min(uid) FROM ({through.sql} LIMIT {MAX_CHECKED_WORKS})", through.parameters
    )
    return FilteredPage(uids, JobUid(lowest) if looked_at == MAX_CHECKED_WORKS else None)


def _among_newest(
    connection: sqlite3.Connection, through: Walk, where: Condition, count: int
) -> tuple[JobUid, ...]:
    """Return the jobs, tuning jobs and pipelines that meet `where`, among the next `count` entries of the
    list `through`. The result has at most as many entries as a page (`:limit`)."""
    wanted = _Sql(dict(through.parameters))
    rows = connection.execute(
        f"SELECT works.uid FROM ({through.sql} LIMIT {count}) AS newest "
        f"CROSS JOIN works ON works.uid = newest.uid WHERE {wanted.test(where)} LIMIT :limit",
        wanted.parameters,
    )
    return tuple(JobUid(uid) for (uid,) in rows)


def _by_index(connection: sqlite3.Connection, through: Walk, where: Condition) -> tuple[JobUid, ...] | None:
    """Return the next jobs, tuning jobs and pipelines that meet `where`, or None if SQLite needs more than
    `MAX_STEPS` steps."""
    wanted = _Sql(dict(through.parameters), leads=True)
    # The plus sign prevents SQLite from using the location's index, which would be slow because many jobs
    # share a location.
    place = through.test.replace("works.", "+works.")
    connection.set_progress_handler(lambda: 1, MAX_STEPS)
    try:
        rows = connection.execute(
            f"SELECT uid FROM works WHERE {place} AND uid < :below AND {wanted.test(where)} "
            "ORDER BY uid DESC LIMIT :limit",
            wanted.parameters,
        )
        return tuple([JobUid(uid) for (uid,) in rows])
    except sqlite3.OperationalError as failure:
        if failure.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    finally:
        connection.set_progress_handler(None, 0)


class _Sql(Struct):
    """Translates conditions to SQL. Values become parameters. They are never part of the SQL text."""

    parameters: Parameters
    #: Whether SQLite may use an index to find jobs by label. Otherwise, it checks the labels of each job.
    leads: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def test(self, where: Condition) -> str:
        """Return an SQL expression that is true for rows of the table `works` (jobs, tuning jobs and
        pipelines) that meet the condition."""
        match where:
            case Equal(Column.STATE, value):
                return f"works.state = {self._value(value)}"
            case Equal(Column.DISPLAY_NAME, value):
                return f"works.display_name = {self._value(value)}"
            case Equal(_, job_id):
                # The ID of a job, tuning job or pipeline is either an ID that a client chose, or its UID.
                # Search for both.
                value = self._value(job_id)
                return (
                    "works.uid IN (SELECT uid FROM job_names INDEXED BY job_names_chosen "
                    f"WHERE job_id = {value} AND job_id <> CAST(uid AS TEXT) UNION ALL SELECT uid FROM works "
                    f"WHERE uid = CAST({value} AS INTEGER) AND {value} = CAST(uid AS TEXT))"
                )
            case Contains(part):
                return f"instr(works.display_name, {self._value(part)}) > 0"
            case HasLabel(key, value):
                valued = "" if value is None else f" AND value = {self._value(value)}"
                labelled = f"SELECT uid FROM work_labels WHERE key = {self._value(key)}{valued}"
                if self.leads:
                    return f"works.uid IN ({labelled})"
                return f"EXISTS ({labelled} AND work_labels.uid = works.uid)"
            case Created(first, last):
                return f"works.created BETWEEN {self._value(first)} AND {self._value(last)}"
            case Every(conditions):
                return self._join(" AND ", conditions) or "TRUE"
            case Either(conditions):
                return self._join(" OR ", conditions) or "FALSE"
            case _:
                assert_never(where)

    def _join(self, operator: str, conditions: tuple[Condition, ...]) -> str:
        tests = operator.join(map(self.test, conditions))
        return f"({tests})" if tests else ""

    def _value(self, value: str | int) -> str:
        name = f"where_{next(self._numbers)}"
        self.parameters[name] = value
        return f":{name}"
