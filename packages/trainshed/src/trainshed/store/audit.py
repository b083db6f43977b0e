"""The audit log: all changes with their authors.

A transport registers the author of its call with `recording`. The store adds the call's record to the
transaction of the call's first write. Therefore every change has a record, and every record belongs to a
stored change.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from trainshed.access.authentication_limits import SOURCE
from trainshed.core.units import Nanos
from trainshed.store.sqlite.connections import load_statements
from trainshed.wire.status import StatusCode

_SQL = load_statements("audit.sql")
_NEWEST = (1 << 63) - 1
_KEPT: Final = 400 * 24 * 3600 * 10**9
"""Nanoseconds for which audit records are kept: a year, and another month for readers."""
T = TypeVar("T")


class AuditRecord(Struct, omit_defaults=True):
    """One change, or one read of a secret. Fields that become known later are set before the record is
    stored."""

    #: The e-mail address of the author.
    who: str
    #: The full name of the method.
    method: str
    #: The name of the changed resource.
    resource: str = ""
    #: The service account that the author impersonated, or None.
    acting_as: str | None = None
    #: The source address of the request, or None if unknown.
    source: str | None = None
    #: The details of the change, without secrets.
    detail: Mapping[str, object] = field(default_factory=dict[str, object])
    #: The google.rpc code of the response. 0 is OK.
    status: int = 0
    #: The uid of the job whose program made the change. None for a user or a service account.
    job: str | None = None

    @property
    def facts(self) -> Mapping[str, object]:
        """Return the details of the change, including the job whose program made it."""
        return {"job": self.job, **self.detail} if self.job else self.detail


class AuditRow(Struct, frozen=True):
    """An audit record in its stored form."""

    seq: int
    at: Nanos
    #: The project of the change, or "" for the whole service.
    project: str
    record: AuditRecord
    hash: bytes


class RecordedCall(Struct):
    """A call that is being processed, with its audit record."""

    at: Nanos
    record: AuditRecord
    project: str = ""
    is_stored: bool = False

    def describe(self, **facts: object) -> None:
        """Add details of the change to the call's audit record."""
        self.record.detail = {**facts, **self.record.detail}


_CALL: Final[ContextVar[RecordedCall | None]] = ContextVar("call", default=None)


@contextlib.contextmanager
def recording(call: RecordedCall) -> Generator[None]:
    """Add the record of this call to the first write inside the block, in any of the block's tasks."""
    call.record.source = call.record.source or SOURCE.get() or None
    before = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(before)
        # Tasks that continue after the block have no author.
        call.is_stored = True


def under_way() -> RecordedCall | None:
    """Return the current call if its record is not stored yet, otherwise None."""
    call = _CALL.get()
    return None if call is None or call.is_stored else call


def record_is_stored() -> None:
    """Set the record of the current call to stored, after its commit."""
    if (call := under_way()) is not None:
        call.is_stored = True


def concerns(project: str, resource: str) -> RecordedCall | None:
    """Set the project and the resource of the current call's record. Return the call, or None if its record
    is stored or no call is active."""
    if (call := under_way()) is not None:
        call.project, call.record.resource = project, resource
    return call


def chained(before: bytes, at: Nanos, project: str, content: bytes) -> bytes:
    """Return the hash of a record: the SHA-256 of the preceding record's hash and of the record's content."""
    digest = hashlib.sha256(before)
    digest.update(b"%d\0%s\0" % (at, project.encode()))
    digest.update(content)
    return digest.digest()


def recorded(work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """Return a function that runs `work` and then adds the record of the current call. After the commit, the
    caller must call `record_is_stored`."""
    call = under_way()
    if call is None:
        return work

    def with_record(connection: sqlite3.Connection) -> T:
        result = work(connection)
        content = msgspec.json.encode(call.record)
        row = connection.execute(_SQL["last_hash"]).fetchone()
        chain = chained(row[0] if row else b"", call.at, call.project, content)
        values = {"at": call.at, "project_id": call.project, "content": content, "hash": chain}
        connection.execute(_SQL["add"], values)
        connection.execute(_SQL["forget"], {"before": call.at - _KEPT})
        return result

    return with_record


def page(
    connection: sqlite3.Connection, project: str | None, before: int | None, limit: int
) -> tuple[AuditRow, ...]:
    """Return the newest records whose `seq` is lower than `before`, newest first. With `project`, return only
    records of that project."""
    parameters = {"project_id": project, "before": before or _NEWEST, "limit": limit}
    return tuple(_row(row) for row in connection.execute(_SQL["page"], parameters))


def _row(row: tuple[int, Nanos, str, bytes, bytes, bytes | None]) -> AuditRow:
    """Return an audit record. Its status becomes DATA_LOSS if its hash is wrong, because the record was
    changed or its predecessor is missing."""
    seq, at, project, content, hash_, before = row
    try:
        record = msgspec.json.decode(content, type=AuditRecord)
    except (ValueError, RecursionError):
        record = AuditRecord("", "")
    is_oldest = before is None and seq > 1
    if not is_oldest and hash_ != chained(before or b"", at, project, content):
        record.status = StatusCode.DATA_LOSS.number
    return AuditRow(seq, at, project, record, hash_)
