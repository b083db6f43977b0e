"""The audit record: who changed what. A call's record is stored in the transaction of its first write.

A transport says whose call it answers (`recording`); the store adds the record to what is written then. So a
change without its record cannot be, nor a record of what did not happen.
"""

import contextlib
import hashlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Final

from msgspec import Struct, field

from trainshed.access.strangers import SOURCE
from trainshed.core.units import Nanos


class AuditRecord(Struct, omit_defaults=True):
    """One change, or one look at something secret. What is known only later is set until it is stored."""

    #: Who did it, by e-mail address.
    who: str
    #: The method's full name.
    method: str
    #: What it was done to: a resource's name.
    resource: str = ""
    #: The service account as which it was done; "" = none.
    acting_as: str = ""
    #: The address that the request came from; "" = it is not known.
    source: str = ""
    #: What was changed and how; no secrets.
    detail: Mapping[str, object] = field(default_factory=dict[str, object])
    #: The number of the answer's google.rpc code; 0 = it was done.
    status: int = 0


class AuditRow(Struct, frozen=True):
    """A record as it is stored."""

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


_CALL: Final[ContextVar[RecordedCall | None]] = ContextVar("call", default=None)


@contextlib.contextmanager
def recording(call: RecordedCall) -> Generator[None]:
    """Have the first write of the block, in whichever task, carry the record of this call."""
    call.record.source = call.record.source or SOURCE.get()
    before = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(before)
        # Tasks that were begun in the block, and go on, write for nobody.
        call.is_stored = True


def under_way() -> RecordedCall | None:
    """Return the call whose record has yet to be stored."""
    call = _CALL.get()
    return None if call is None or call.is_stored else call


def record_is_stored() -> None:
    """Say that the record of the call under way was committed."""
    if (call := under_way()) is not None:
        call.is_stored = True


def concerns(project: str, resource: str) -> None:
    """Say what the call under way is about; it is known here better than where it was answered."""
    if (call := under_way()) is not None:
        call.project, call.record.resource = project, resource


def chained(before: bytes, at: Nanos, project: str, content: bytes) -> bytes:
    """Return the hash of a record: SHA-256 of the hash before it, and of what the record holds."""
    digest = hashlib.sha256(before)
    digest.update(b"%d\0%s\0" % (at, project.encode()))
    digest.update(content)
    return digest.digest()
