"""Lists that are narrowed to a condition: which works meet it, found without reading their records.

Where an index says that few works can meet it, those are looked at; where it does not, all works of the list
are gone through from the newest on, a bounded number at a time (ADR 74).
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, assert_never

from trainshed.core.names import JobUid
from trainshed.store.conditions import (
    Column,
    Condition,
    Contains,
    Created,
    Either,
    Equal,
    Every,
    Labelled,
)
from trainshed.store.sqlite.rows import Parameters

FEW: Final = 5_000
"""Works of an index that are looked at one by one; counting so many takes half a millisecond."""
MOST_LOOKED_AT: Final = 50_000
"""Works that one step of a list goes through; it takes 10 to 25 ms."""

_PLACES: Final = {
    "jobs_of_all": ("works_by_client", "parent_uid = 0"),
    "jobs_of_project": ("works_by_project", "project_id = :project_id AND parent_uid = 0"),
    "jobs_of_api": ("works_by_api", "project_id = :project_id AND api = :api AND parent_uid = 0"),
    "jobs_of_location": (
        "works_by_location",
        "project_id = :project_id AND api = :api AND location = :location AND parent_uid = 0",
    ),
    "jobs_of_kind": ("works_by_kind", "project_id = :project_id AND api = :api AND kind = :kind"),
    "jobs_of_collection": (
        "works_by_collection",
        "project_id = :project_id AND api = :api AND location = :location AND kind = :kind",
    ),
}
"""By the name of the list's statement (`reader.sql`): the index that has its order, and its works."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """One step through a narrowed list."""

    #: Works that meet the condition, newest first; at most as many as were asked for.
    uids: tuple[JobUid, ...]
    #: Where to go on: below this uid nothing was looked at. None = all was.
    went_to: JobUid | None


def narrowed(
    connection: sqlite3.Connection, statement: str, parameters: Parameters, where: Condition
) -> Narrowed:
    """The next works of a list that meet `where`; `statement` and `parameters` as of `list_statement`."""
    wanted = _Sql(dict(parameters))
    index, place = _PLACES[statement]
    test = wanted.test(where)
    few = wanted.few(where, connection, per_project="project_id" in parameters)
    limit = int(parameters["limit"])
    if few is not None:
        rows = connection.execute(
            f"SELECT works.uid FROM ({few.sql}) AS few CROSS JOIN works ON works.uid = few.uid "
            f"WHERE {place} AND works.uid < :below AND {test} ORDER BY works.uid DESC LIMIT :limit",
            wanted.parameters,
        )
        uids = tuple(JobUid(uid) for (uid,) in rows)
        return Narrowed(uids, uids[-1] if len(uids) == limit else None)
    newest = (
        f"SELECT * FROM works INDEXED BY {index} WHERE {place} AND uid < :below "
        f"ORDER BY uid DESC LIMIT {MOST_LOOKED_AT}"
    )
    rows = connection.execute(
        f"SELECT uid FROM ({newest}) AS works WHERE {test} LIMIT :limit", wanted.parameters
    )
    uids = tuple(JobUid(uid) for (uid,) in rows)
    if len(uids) == limit:
        return Narrowed(uids, uids[-1])
    ((looked_at, lowest),) = connection.execute(
        f"SELECT count(*), min(uid) FROM ({newest.replace('*', 'uid', 1)})", parameters
    )
    return Narrowed(uids, JobUid(lowest) if looked_at == MOST_LOOKED_AT else None)


@dataclass(frozen=True, slots=True)
class _Few:
    """A statement that gives the uids of all works that can meet a condition, and how many."""

    sql: str
    count: int


@dataclass(slots=True)
class _Sql:
    """Conditions as SQL. Values are parameters, never text of a statement."""

    parameters: Parameters
    _taken: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def test(self, where: Condition) -> str:
        """An expression over a row of `works` that is true where the condition holds."""
        match where:
            case Equal(Column.STATE, value):
                return f"works.state = {self._value(value)}"
            case Equal(Column.DISPLAY_NAME, value):
                return f"works.display_name = {self._value(value)}"
            case Equal(_, value):
                return (
                    "EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_by_job_id "
                    f"WHERE jobs.job_id = {self._value(value)} AND jobs.uid = works.uid)"
                )
            case Contains(part):
                return f"instr(works.display_name, {self._value(part)}) > 0"
            case Labelled(key, value):
                valued = "" if value is None else f" AND work_labels.value = {self._value(value)}"
                return (
                    "EXISTS (SELECT 1 FROM work_labels WHERE work_labels.uid = works.uid "
                    f"AND work_labels.key = {self._value(key)}{valued})"
                )
            case Created(first, last):
                return f"works.created BETWEEN {self._value(first)} AND {self._value(last)}"
            case Every(conditions):
                return self._joined(" AND ", conditions) or "TRUE"
            case Either(conditions):
                return self._joined(" OR ", conditions) or "FALSE"
            case _:
                assert_never(where)

    def few(
        self, where: Condition, connection: sqlite3.Connection, *, per_project: bool
    ) -> _Few | None:
        """How to find the works if an index says that there are few; None if none says so."""
        match where:
            case Equal(Column.STATE, value):
                project = " AND project_id = :project_id" if per_project else ""
                found = (
                    f"works INDEXED BY works_by_state WHERE state = {self._value(value)}{project}"
                )
            case Equal(Column.DISPLAY_NAME, value):
                found = (
                    "works INDEXED BY works_by_display_name "
                    f"WHERE display_name = {self._value(value)}"
                )
            case Equal(_, value):
                found = f"jobs INDEXED BY jobs_by_job_id WHERE job_id = {self._value(value)}"
            case Labelled(key, value):
                valued = "" if value is None else f" AND value = {self._value(value)}"
                found = (
                    "work_labels INDEXED BY work_labels_by_value "
                    f"WHERE key = {self._value(key)}{valued}"
                )
            case Created(first, last):
                found = (
                    "works INDEXED BY works_by_creation "
                    f"WHERE created BETWEEN {self._value(first)} AND {self._value(last)}"
                )
            case Contains():
                return None
            case Every(conditions):
                each = [
                    few
                    for inner in conditions
                    if (few := self.few(inner, connection, per_project=per_project)) is not None
                ]
                return min(each, key=lambda few: few.count, default=None)
            case Either(conditions):
                return self._few_of_either(conditions, connection, per_project=per_project)
            case _:
                assert_never(where)
        counting = f"SELECT count(*) FROM (SELECT 1 FROM {found} LIMIT {FEW + 1})"
        ((count,),) = connection.execute(counting, self.parameters)
        return _Few(f"SELECT uid FROM {found}", count) if count <= FEW else None

    def _few_of_either(
        self,
        conditions: tuple[Condition, ...],
        connection: sqlite3.Connection,
        *,
        per_project: bool,
    ) -> _Few | None:
        each: list[_Few] = []
        for inner in conditions:
            few = self.few(inner, connection, per_project=per_project)
            if few is None:
                return None
            each.append(few)
        count = sum(few.count for few in each)
        if not each:
            return _Few("SELECT 0 AS uid WHERE FALSE", 0)
        if count > FEW:
            return None
        return _Few(" UNION ".join(few.sql for few in each), count)

    def _joined(self, operator: str, conditions: tuple[Condition, ...]) -> str:
        tests = operator.join(map(self.test, conditions))
        return f"({tests})" if tests else ""

    def _value(self, value: str | int) -> str:
        name = f"where_{next(self._taken)}"
        self.parameters[name] = value
        return f":{name}"
