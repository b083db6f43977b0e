"""The audit log: a record of every change with its author.

A transport registers a call and its author with `recording`. The store adds the call's record to the
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
"""How long audit records are kept, in nanoseconds: a year, and another month in which to read them."""
T = TypeVar("T")


class AuditRecord(Struct, omit_defaults=True):
    """One change, or one read of a secret. Fields whose values become known during the call are set before
    the record is stored."""

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
    #: The google.rpc code of the response. 0 means OK.
    status: int = 0
    #: The UID of the job whose program made the change, or None for a user or a service account.
    job: str | None = None

    @property
    def facts(self) -> Mapping[str, object]:
        """Return the details of the change. If a program made the change, they include its job."""
        return {"job": self.job, **self.detail} if self.job else self.detail


class AuditRow(Struct, frozen=True):
    """An audit record with its position and hash in the audit log."""

    seq: int
    at: Nanos
    #: The project of the change, or "" for the whole service.
    project: str
    record: AuditRecord
    hash: bytes


class RecordedCall(Struct):
    """A call that is being processed, with the audit record that a write of this call stores."""

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
    """Add the record of this call to the first write in the block, or in a task that was started there."""
    call.record.source = call.record.source or SOURCE.get() or None
    before = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(before)
        # From now on, tasks that were started in the block and still run no longer store the record.
        call.is_stored = True


def current_call() -> RecordedCall | None:
    """Return the current call, or None if its record is already stored or there is no call."""
    call = _CALL.get()
    return None if call is None or call.is_stored else call


def mark_stored() -> None:
    """Mark the record of the current call as stored. Call this function after the commit."""
    if (call := current_call()) is not None:
        call.is_stored = True


def set_subject(project: str, resource: str) -> RecordedCall | None:
    """Set the project and the resource in the current call's record. Return the call, or None if its record
    is already stored or there is no call."""
    if (call := current_call()) is not None:
        call.project, call.record.resource = project, resource
    return call


def chain_hash(before: bytes, at: Nanos, project: str, content: bytes) -> bytes:
    """Return the hash of a record: the SHA-256 of the previous record's hash and of this record."""
    digest = hashlib.sha256(before)
    digest.update(b"%d\0%s\0" % (at, project.encode()))
    digest.update(content)
    return digest.digest()


def with_audit_record(work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """Return a function that runs `work` and then adds the record of the current call. After the commit, the
    caller must call `mark_stored`."""
    call = current_call()
    if call is None:
        return work

    def with_record(connection: sqlite3.Connection) -> T:
        result = work(connection)
        content = msgspec.json.encode(call.record)
        row = connection.execute(_SQL["last_hash"]).fetchone()
        chain = chain_hash(row[0] if row else b"", call.at, call.project, content)
        values = {"at": call.at, "project_id": call.project, "content": content, "hash": chain}
        connection.execute(_SQL["add"], values)
        connection.execute(_SQL["forget"], {"before": call.at - _KEPT})
        return result

    return with_record


def page(
    connection: sqlite3.Connection, project: str | None, before: int | None, limit: int
) -> tuple[AuditRow, ...]:
    """Return up to `limit` records whose `seq` is lower than `before`, newest first. `project`: only records
    of this project; None = all records."""
    parameters = {"project_id": project, "before": before or _NEWEST, "limit": limit}
    return tuple(_row(row) for row in connection.execute(_SQL["page"], parameters))


def _row(row: tuple[int, Nanos, str, bytes, bytes, bytes | None]) -> AuditRow:
    """Return an audit record. If its hash does not match, its status becomes DATA_LOSS: the record was
    changed, or the previous record is missing."""
    seq, at, project, content, hash_, before = row
    try:
        record = msgspec.json.decode(content, type=AuditRecord)
    except (ValueError, RecursionError):
        record = AuditRecord("", "")
    is_oldest = before is None and seq > 1
    if not is_oldest and hash_ != chain_hash(before or b"", at, project, content):
        record.status = StatusCode.DATA_LOSS.number
    return AuditRow(seq, at, project, record, hash_)
