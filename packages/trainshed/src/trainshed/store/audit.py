"""The audit record: the changes and their authors. A call's record is stored in the transaction of
its first write.

A transport sets the author of its call (`recording`); the store adds the record to the call's
writes. So every change has its record, and every record belongs to a stored change.
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
"""Nanoseconds that records are kept: a year, and a month to notice it."""
T = TypeVar("T")


class AuditRecord(Struct, omit_defaults=True):
    """One change, or one read of a secret. Fields that are known only later are set until the
    record is stored."""

    #: The e-mail address of the author.
    who: str
    #: The method's full name.
    method: str
    #: The name of the changed resource.
    resource: str = ""
    #: The service account as which it was done.
    acting_as: str | None = None
    #: The address that the request came from; None = it is not known.
    source: str | None = None
    #: The details of the change; no secrets.
    detail: Mapping[str, object] = field(default_factory=dict[str, object])
    #: The number of the answer's google.rpc code; 0 is OK: it was done.
    status: int = 0
    #: The uid of the job whose program did it; None = a person or a service account did.
    job: str | None = None

    @property
    def facts(self) -> Mapping[str, object]:
        """The details of the change, and the job whose program made it."""
        return {"job": self.job, **self.detail} if self.job else self.detail


class AuditRow(Struct, frozen=True):
    """A record in its stored form."""

    seq: int
    at: Nanos
    #: "" = it concerns the whole service.
    project: str
    record: AuditRecord
    hash: bytes


class RecordedCall(Struct):
    """A call that is under way."""

    at: Nanos
    record: AuditRecord
    project: str = ""
    is_stored: bool = False

    def describe(self, **facts: object) -> None:
        """Add to what was changed and how."""
        self.record.detail = {**facts, **self.record.detail}


_CALL: Final[ContextVar[RecordedCall | None]] = ContextVar("call", default=None)


@contextlib.contextmanager
def recording(call: RecordedCall) -> Generator[None]:
    """Have the first write of the block, in whichever task, carry the record of this call."""
    call.record.source = call.record.source or SOURCE.get() or None
    before = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(before)
        # Tasks that were started in the block, and continue, have no author.
        call.is_stored = True


def under_way() -> RecordedCall | None:
    """Return the call whose record has yet to be stored."""
    call = _CALL.get()
    return None if call is None or call.is_stored else call


def record_is_stored() -> None:
    """Say that the record of the call under way was committed."""
    if (call := under_way()) is not None:
        call.is_stored = True


def concerns(project: str, resource: str) -> RecordedCall | None:
    """Set what the call under way is about; it is known here better than where it was answered. Return the
    call; None = its record is stored, or there is none."""
    if (call := under_way()) is not None:
        call.project, call.record.resource = project, resource
    return call


def chained(before: bytes, at: Nanos, project: str, content: bytes) -> bytes:
    """Return the hash of a record: SHA-256 of the preceding hash and of the record's content."""
    digest = hashlib.sha256(before)
    digest.update(b"%d\0%s\0" % (at, project.encode()))
    digest.update(content)
    return digest.digest()


def recorded(work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """Return `work`, which then also adds the record of the call under way. When it is committed, the caller
    has to say so."""
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
    """Return the newest records with a lower `seq` than `before`, newest first; those of one project with
    `project`."""
    parameters = {"project_id": project, "before": before or _NEWEST, "limit": limit}
    return tuple(_row(row) for row in connection.execute(_SQL["page"], parameters))


def _row(row: tuple[int, Nanos, str, bytes, bytes, bytes | None]) -> AuditRow:
    """Return a record. If its hash does not fit, because it was changed or the record before it is
    missing, it is marked."""
    seq, at, project, content, hash_, before = row
    try:
        record = msgspec.json.decode(content, type=AuditRecord)
    except (ValueError, RecursionError):
        record = AuditRecord("", "")
    is_oldest = before is None and seq > 1
    if not is_oldest and hash_ != chained(before or b"", at, project, content):
        record.status = StatusCode.DATA_LOSS.number
    return AuditRow(seq, at, project, record, hash_)
