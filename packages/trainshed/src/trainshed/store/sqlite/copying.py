"""Copies a database as of one moment, while a service writes to it; checks copies, lists their contents and
what of that cannot be read. Needs no open store."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.core.errors import FailedPrecondition
from trainshed.core.names import JobUid
from trainshed.store.codec import CODECS, decode_job
from trainshed.store.sqlite.connections import damaged, open_reader, require_known, require_sound


class StoredWork(Struct, frozen=True):
    """A work as far as its columns describe it. `attempt`: its latest, None if the record cannot be read."""

    uid: JobUid
    name: str
    state: str
    is_live: bool
    attempt: int | None


class _Attempted(msgspec.Struct):
    attempt: int = 0


def copy_database(database: Path, target: Path) -> None:
    """Copy a database in one read transaction: writers continue, and none of their transactions is
    copied in part. Blocks.

    Raises StoreUnreadable (it is damaged), OSError.
    """
    try:
        with closing(open_reader(database)) as source, closing(sqlite3.connect(target)) as copy:
            # In one go: in steps, it would start again after each commit of a busy service.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as failure:
        raise OSError(f"{database} cannot be copied: {failure}") from failure
    except sqlite3.DatabaseError as failure:
        raise damaged(database, str(failure)) from failure


def check_database(database: Path) -> int:
    """Check a whole database, and return its schema version. Raises StoreUnreadable."""
    try:
        with closing(open_reader(database)) as connection:
            require_sound(connection, database)
            return require_known(connection, database)
    except sqlite3.DatabaseError as failure:
        raise damaged(database, str(failure)) from failure


def unreadable_in(database: Path) -> Iterator[str]:
    """Yield every record that cannot be read, by its table and its key there."""
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
            # Unreadable parts of a job were reported; the format of an intent depends on its kind.
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
    """Yield every work, by its uid."""
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
