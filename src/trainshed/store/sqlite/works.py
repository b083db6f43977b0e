"""How a new work and the entries of its story are stored: by requests and by the steps of other works."""

import sqlite3
from collections.abc import Callable, Iterable

from trainshed.core.errors import AlreadyExists, Unavailable
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobUid
from trainshed.store.codec import encode_details
from trainshed.store.port import NewWork
from trainshed.store.sqlite.rows import work_parameters
from trainshed.store.statements import load_statements

_SQL = load_statements("trainshed.store.sqlite", "works.sql")


def storing(made: NewWork) -> Callable[[sqlite3.Connection], None]:
    """What stores a new work. It is encoded here, on the caller's thread, and not on the writer's.

    The function raises AlreadyExists (the name was used before), Unavailable (the uid is taken).
    """
    job = made.job
    parameters = work_parameters(job)

    def store(connection: sqlite3.Connection) -> None:
        if connection.execute(_SQL["reserve_name"], parameters).rowcount != 1:
            raise AlreadyExists(
                f"{job.name} exists or existed before; names are never used again. Choose another id"
            )
        if connection.execute(_SQL["insert_job"], parameters).rowcount != 1:
            raise Unavailable("two jobs were given one number; send the request again")
        connection.execute(_SQL["insert_work"], parameters)
        append_timeline(connection, job.uid, made.timeline)

    return store


def append_timeline(
    connection: sqlite3.Connection, uid: JobUid, entries: Iterable[TimelineEntry]
) -> None:
    """Add to the story of a work, which need not be there."""
    for entry in entries:
        connection.execute(
            _SQL["append_timeline"],
            {
                "uid": uid,
                "at": entry.at,
                "kind": entry.kind,
                "message": entry.message,
                "details": encode_details(entry.details),
            },
        )
