"""The store's port for who is known here, and for the audit record of what people changed."""

from collections.abc import Collection, Mapping
from typing import Protocol

from trainshed.core.units import Nanos
from trainshed.store.audit import AuditRow

Documents = Mapping[tuple[str, str], bytes]
"""The entries of the access book in JSON, by (kind, key)."""


class Access(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        """Return all entries, and when each token was last shown, by its digest. Blocks."""
        ...

    async def change(
        self,
        put: Documents,
        removed: Collection[tuple[str, str]],
    ) -> None:
        """Write and remove entries, in one transaction."""
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
