"""The store's port for who is known here, and for the audit record of what people changed."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from trainshed.core.units import Nanos

Documents = Mapping[tuple[str, str], bytes]
"""The entries of the access book in JSON, by (kind, key)."""


class AuditRecord(Struct, frozen=True, omit_defaults=True):
    """One change, or one look at something secret."""

    #: Who did it, by e-mail address.
    who: str
    #: The method's full name.
    method: str
    #: What it was done to: a resource's name.
    resource: str = ""
    #: The address that the request came from; "" = from within.
    source: str = ""
    #: What was changed and how; no secrets.
    detail: Mapping[str, object] = field(default_factory=dict[str, object])


class AuditRow(Struct, frozen=True):
    """A record as it is stored."""

    seq: int
    at: Nanos
    #: "" = it concerns the whole service.
    project: str
    record: AuditRecord
    hash: bytes


def chained(before: bytes, at: Nanos, project: str, content: bytes) -> bytes:
    """Return the hash of a record: SHA-256 of the hash before it, and of what the record holds."""
    digest = hashlib.sha256(before)
    digest.update(b"%d\0%s\0" % (at, project.encode()))
    digest.update(content)
    return digest.digest()


class Access(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        """Return all entries, and when each token was last shown, by its digest. Blocks."""
        ...

    async def change(
        self,
        put: Documents,
        removed: Collection[tuple[str, str]],
        *,
        at: Nanos,
        audit: Sequence[tuple[str, AuditRecord]],
    ) -> None:
        """Write and remove entries, and add the records of it, (project, record), in one transaction."""
        ...

    async def note_uses(self, uses: Mapping[str, Nanos]) -> None:
        """Record when tokens were last shown, by their digests."""
        ...

    async def audited(
        self, project: str | None, before: int | None, limit: int
    ) -> tuple[AuditRow, ...]:
        """Return the newest records with a lower `seq` than `before`, newest first; those of one project with
        `project`."""
        ...
