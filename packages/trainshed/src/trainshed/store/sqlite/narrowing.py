"""Finds the works of a list that meet a condition, without reading their records.

Conditions that many works meet fill a page from the newest works. For rarer conditions an index leads to
the works in a few steps of SQLite's machine. If neither is enough, the works of the list are read from the
newest on, a limited number at a time (ADR 3).
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
    JobQuery,
    Labelled,
)
from trainshed.store.sqlite.connections import Parameters

_EVERYWHERE: Final = (
    "SELECT uid FROM works INDEXED BY works_by_client WHERE parent_uid = 0 AND uid < :below"
)
_OF_API: Final = (
    "SELECT uid FROM works INDEXED BY works_of_projects "
    "WHERE parent_uid = 0 AND project_id = :project_id AND api = '{}' AND uid < :below"
)
_OF_COLLECTION: Final = (
    "SELECT uid FROM works INDEXED BY {} WHERE {} AND project_id = :project_id AND api = 'vertex' "
    "AND location = :location AND kind = :kind AND uid < :below"
)


class Walk(Struct, frozen=True):
    """Selects all works of a list below the uid `:below`."""

    #: A statement that selects their uids, newest first; it may be extended by a LIMIT.
    sql: str
    #: An expression over a row of `works` that is true for works of the list.
    test: str
    #: Parameters of both, and `limit`, the number of works that are wanted.
    parameters: Parameters


def walk(query: JobQuery) -> Walk:
    """Return the walk through the works of `query`."""
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


FEW_LOOKED_AT: Final = 1_000
"""Newest works that are read before an index is tried; this takes about 0.5 ms."""
MAX_STEPS: Final = 100_000
"""Steps of SQLite's machine in which an index may lead to the works that meet a condition: some 2 ms."""
MAX_CHECKED_WORKS: Final = 50_000
"""Works that one step through a list looks at; this takes 10 to 25 ms."""


class Narrowed(Struct, frozen=True):
    """One step through a narrowed list."""

    #: Works that meet the condition, newest first; at most as many as were asked for.
    uids: tuple[JobUid, ...]
    #: Where the next page starts: works below this uid were not checked. None = all were.
    went_to: JobUid | None


def narrowed(connection: sqlite3.Connection, through: Walk, where: Condition) -> Narrowed:
    """Return the next works of a list that meet `where`."""
    limit = int(through.parameters["limit"])
    uids = _among_newest(connection, through, where, FEW_LOOKED_AT)
    if len(uids) == limit:
        return Narrowed(uids, uids[-1])
    if (indexed := _by_index(connection, through, where)) is not None:
        return Narrowed(indexed, indexed[-1] if len(indexed) == limit else None)
    uids = _among_newest(connection, through, where, MAX_CHECKED_WORKS)
    if len(uids) == limit:
        return Narrowed(uids, uids[-1])
    ((looked_at, lowest),) = connection.execute(
        f"SELECT count(*), min(uid) FROM ({through.sql} LIMIT {MAX_CHECKED_WORKS})",
        through.parameters,
    )
    return Narrowed(uids, JobUid(lowest) if looked_at == MAX_CHECKED_WORKS else None)


def _among_newest(
    connection: sqlite3.Connection, through: Walk, where: Condition, count: int
) -> tuple[JobUid, ...]:
    """Return the works that meet `where` among the next `count` works of a list, at most as many as are
    wanted."""
    wanted = _Sql(dict(through.parameters))
    rows = connection.execute(
        f"SELECT works.uid FROM ({through.sql} LIMIT {count}) AS newest "
        f"CROSS JOIN works ON works.uid = newest.uid WHERE {wanted.test(where)} LIMIT :limit",
        wanted.parameters,
    )
    return tuple(JobUid(uid) for (uid,) in rows)


def _by_index(
    connection: sqlite3.Connection, through: Walk, where: Condition
) -> tuple[JobUid, ...] | None:
    """Return the next works that meet `where`, if SQLite finds all of them, or as many as are wanted, in few
    steps; None otherwise."""
    wanted = _Sql(dict(through.parameters), leads=True)
    # A plus keeps SQLite from going by the place, which many works share.
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
    """Makes SQL of conditions. Values are parameters, never part of a statement's text."""

    parameters: Parameters
    #: Whether an index may lead to the works that have a label, rather than a look at each work.
    leads: bool = False
    _taken: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def test(self, where: Condition) -> str:
        """Return an expression over a row of `works` that is true where the condition holds."""
        match where:
            case Equal(Column.STATE, value):
                return f"works.state = {self._value(value)}"
            case Equal(Column.DISPLAY_NAME, value):
                return f"works.display_name = {self._value(value)}"
            case Equal(_, job_id):
                # One of the works with this id may have it as its uid.
                value = self._value(job_id)
                return (
                    "works.uid IN (SELECT uid FROM job_names INDEXED BY job_names_chosen "
                    f"WHERE job_id = {value} AND job_id <> CAST(uid AS TEXT) UNION ALL SELECT uid FROM works "
                    f"WHERE uid = CAST({value} AS INTEGER) AND {value} = CAST(uid AS TEXT))"
                )
            case Contains(part):
                return f"instr(works.display_name, {self._value(part)}) > 0"
            case Labelled(key, value):
                valued = "" if value is None else f" AND value = {self._value(value)}"
                labelled = f"SELECT uid FROM work_labels WHERE key = {self._value(key)}{valued}"
                if self.leads:
                    return f"works.uid IN ({labelled})"
                return f"EXISTS ({labelled} AND work_labels.uid = works.uid)"
            case Created(first, last):
                return f"works.created BETWEEN {self._value(first)} AND {self._value(last)}"
            case Every(conditions):
                return self._joined(" AND ", conditions) or "TRUE"
            case Either(conditions):
                return self._joined(" OR ", conditions) or "FALSE"
            case _:
                assert_never(where)

    def _joined(self, operator: str, conditions: tuple[Condition, ...]) -> str:
        tests = operator.join(map(self.test, conditions))
        return f"({tests})" if tests else ""

    def _value(self, value: str | int) -> str:
        name = f"where_{next(self._taken)}"
        self.parameters[name] = value
        return f":{name}"
