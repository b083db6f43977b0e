"""Where a list finds its works, newest first: the parts of the indexes that it is merged from.

An index holds the works of one place after the other (an API, a location and a kind in a project), and those
of one place by their age. A list of several places is merged by SQLite from as many walks, each of which goes
no further than it must. There are few: as many as locations and kinds in use.
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
    """All works of a list below the uid `:below`."""

    #: A statement that gives their uids, newest first; it takes a LIMIT.
    sql: str
    #: What a row of `works` of the list meets, as an expression.
    test: str
    #: Of both, and `limit`, how many are wanted.
    parameters: Parameters


def walk(connection: sqlite3.Connection, query: JobQuery) -> Walk:
    """How the works of `query` are gone through."""
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
    """By column what the query says of its places."""
    given: dict[str, str] = {}
    if query.collection is not None:
        given |= {"api": Api.VERTEX.value, "kind": KINDS[query.collection].value}
    elif query.api is not None:
        given["api"] = query.api.value
    elif query.location is not None:
        # Names of `ml` jobs carry no location, those of Vertex jobs always do: a location implies the API.
        given["api"] = (Api.VERTEX if query.location else Api.ML).value
    if query.location is not None:
        given["location"] = query.location
    return given


def _places(
    connection: sqlite3.Connection, index: str, whose: str, project_id: str, given: dict[str, str]
) -> Iterator[_Place]:
    """The places of a project that are as given; each location costs one look into the index."""
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
    """The locations of a project in one API that have works."""
    if above[1] == Api.ML:
        # Its names have none.
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
