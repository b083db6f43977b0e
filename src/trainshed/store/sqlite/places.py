"""Selects the works of a list, newest first, merged from parts of the indexes.

An index holds the works of one place after the other (a place is a project's API, location and kind), ordered
by age within each place. For a list of several places SQLite merges one walk per place, each of which goes no
further than it must. There are few places: as many as locations and kinds in use.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from trainshed.core.names import Api
from trainshed.store.codec import WorkKind
from trainshed.store.port import JobQuery
from trainshed.store.sqlite.rows import ABOVE_ALL_UIDS, KINDS, Parameters

_CLIENTS: Final = ("works_of_clients", "parent_uid = 0")
_WORKS: Final = ("works_of_works", "parent_uid <> 0")
_EVERYWHERE: Final = (
    "SELECT uid FROM works INDEXED BY works_by_client WHERE parent_uid = 0 AND uid < :below"
)
_NOWHERE: Final = "SELECT 0 AS uid WHERE FALSE"
_COLUMNS: Final = ("api", "location", "kind")

_Place = tuple[str, str, str]
"""API, location and kind."""


class Walk(Struct, frozen=True):
    """Selects all works of a list below the uid `:below`."""

    #: A statement that selects their uids, newest first; it may be extended by a LIMIT.
    sql: str
    #: An expression over a row of `works` that is true for works of the list.
    test: str
    #: Parameters of both, and `limit`, the number of works that are wanted.
    parameters: Parameters


def walk(connection: sqlite3.Connection, query: JobQuery) -> Walk:
    """Return the walk through the works of `query`."""
    parameters: Parameters = {"below": query.after or ABOVE_ALL_UIDS, "limit": query.limit}
    if not query.project_id:
        return Walk(f"{_EVERYWHERE} ORDER BY uid DESC", "works.parent_uid = 0", parameters)
    parameters["project_id"] = query.project_id
    given = _given(query)
    parameters |= given
    tests = ["works.project_id = :project_id"]
    tests += [f"works.{column} = :{column}" for column in given]
    if query.collection is None:
        tests.append("works.parent_uid = 0")
    parts: list[str] = []
    for index, whose in (_CLIENTS,) if query.collection is None else (_CLIENTS, _WORKS):
        for place in _places(connection, index, whose, query.project_id, given):
            names = [f"{column}_{len(parts)}" for column in _COLUMNS]
            parameters |= zip(names, place, strict=True)
            equal = " AND ".join(
                f"{column} = :{name}" for column, name in zip(_COLUMNS, names, strict=True)
            )
            parts.append(
                f"SELECT uid FROM works INDEXED BY {index} "
                f"WHERE {whose} AND project_id = :project_id AND {equal} AND uid < :below"
            )
    merged = " UNION ALL ".join(parts) or _NOWHERE
    return Walk(f"{merged} ORDER BY uid DESC", " AND ".join(tests), parameters)


def _given(query: JobQuery) -> dict[str, str]:
    """Return the query's conditions on places, by column."""
    given: dict[str, str] = {}
    if query.collection is not None:
        given |= {"api": Api.VERTEX.value, "kind": KINDS[query.collection].value}
    elif query.api is not None:
        given["api"] = query.api.value
    elif query.location is not None:
        # Names of `ml` jobs have no location, those of Vertex jobs always do, so a location implies the API.
        given["api"] = (Api.VERTEX if query.location else Api.ML).value
    if query.location is not None:
        given["location"] = query.location
    return given


def _places(
    connection: sqlite3.Connection, index: str, whose: str, project_id: str, given: dict[str, str]
) -> Iterator[_Place]:
    """Yield the places of a project that meet the conditions; each location costs one index lookup."""
    apis = (given["api"],) if "api" in given else tuple(Api)
    kinds = (given["kind"],) if "kind" in given else tuple(WorkKind)
    for api in apis:
        if "location" in given:
            locations = iter((given["location"],))
        else:
            locations = _locations(connection, index, whose, (project_id, api))
        for location in locations:
            yield from ((api, location, kind) for kind in kinds)


def _locations(
    connection: sqlite3.Connection, index: str, whose: str, above: tuple[str, str]
) -> Iterator[str]:
    """Yield the locations of a project in one API that have works."""
    if above[1] == Api.ML:
        # The names of `ml` jobs have none.
        yield ""
        return
    location = ""
    while True:
        ((location,),) = connection.execute(
            f"SELECT min(location) FROM works INDEXED BY {index} "
            f"WHERE {whose} AND project_id = ? AND api = ? AND location > ?",
            (*above, location),
        )
        if location is None:
            return
        yield location
