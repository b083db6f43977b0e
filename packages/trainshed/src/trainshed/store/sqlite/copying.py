"""Copies a consistent state of a database while a service writes to the database. Also checks copies, and
lists their contents and unreadable records. None of these functions needs an open store."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.core.errors import FailedPrecondition
from trainshed.core.names import JobUid
from trainshed.store.codec import CODECS, decode_job
from trainshed.store.sqlite.connections import damaged_error, open_reader, require_known, require_sound


class StoredWork(Struct, frozen=True):
    """A job, tuning job or pipeline, as described by its columns. `attempt`: the number of its latest
    attempt, or None if the record is unreadable."""

    uid: JobUid
    name: str
    state: str
    is_live: bool
    attempt: int | None


class _Attempted(msgspec.Struct):
    attempt: int = 0


def copy_database(database: Path, target: Path) -> None:
    """Copy a database in one read transaction. Writers can continue. Each transaction is copied completely or
    not at all. Blocks. Raise StoreUnreadable for a damaged database, or OSError."""
    try:
        with closing(open_reader(database)) as source, closing(sqlite3.connect(target)) as copy:
            # Copy in one step. A copy in several steps would start again after each commit, and a busy
            # service commits often.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as failure:
        raise OSError(f"the database {database} cannot be copied: {failure}") from failure
    except sqlite3.DatabaseError as failure:
        raise damaged_error(database, str(failure)) from failure


def check_database(database: Path) -> int:
    """Check a whole database, and return its schema version. Raise StoreUnreadable if it is damaged."""
    try:
        with closing(open_reader(database)) as connection:
            require_sound(connection, database)
            return require_known(connection, database)
    except sqlite3.DatabaseError as failure:
        raise damaged_error(database, str(failure)) from failure


def unreadable_in(database: Path) -> Iterator[str]:
    """Yield the table and the key of every unreadable record."""
    with closing(open_reader(database)) as connection:
        for uid, name, *row in connection.execute(
            "SELECT jobs.uid, jobs.project_id || '/' || jobs.job_id, record, labels, labels_updated, kind "
            "FROM jobs JOIN works ON works.uid = jobs.uid"
        ):
            try:
                decode_job(*row)
            except FailedPrecondition:
                yield f"jobs {uid} ({name})"
        for codec in CODECS:
            # Skip jobs, whose unreadable records were reported above. Skip intents, because their format
            # depends on the kind of the intent.
            if codec.table in ("jobs", "intents"):
                continue
            query = "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk"
            keys = " || '/' || ".join(key for (key,) in connection.execute(query, (codec.table,)))
            for key, raw in connection.execute(f"SELECT {keys}, {codec.column} FROM {codec.table}"):
                try:
                    codec.decode(raw)
                except FailedPrecondition:
                    yield f"{codec.table} {key}"


def works_in(database: Path) -> Iterator[StoredWork]:
    """Yield all jobs, tuning jobs and pipelines, by uid."""
    with closing(open_reader(database)) as connection:
        rows = connection.execute(
            "SELECT uid, project_id, job_id, state, is_live, record FROM jobs ORDER BY uid"
        )
        for uid, project_id, job_id, state, is_live, record in rows:
            try:
                attempt = msgspec.json.decode(record, type=_Attempted).attempt
            except (ValueError, RecursionError):
                attempt = None
            yield StoredWork(JobUid(uid), f"{project_id}/{job_id}", state, bool(is_live), attempt)
