"""The store's port for secrets: numbered versions of sealed values. Contract suite: tests/contract/store.

It sees neither values nor keys: what it is given is sealed already (`access.sealing`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.secrets import SecretRef
from trainshed.core.units import Nanos


class SecretVersion(Struct, frozen=True):
    """The public facts of one version. `created`, `used`: ns since the epoch; `used` 0 = no program was given
    it yet."""

    name: str
    version: int
    created: Nanos
    used: Nanos = 0


class Sealed(Struct, frozen=True):
    """A sealed value with its version number."""

    version: int
    content: bytes


class Stored(Struct, frozen=True):
    """A sealed value with its project, name and version."""

    project_id: str
    name: str
    version: int
    content: bytes


class Secrets(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        """Store the next version of a secret, or the first one of a new secret. `seal` is called with its
        number and returns what is stored; it runs in the writer's thread, and its exceptions are raised here.
        Numbers of deleted versions are not used again."""
        ...

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        """Return all versions of a project's secrets, by name, newest version first."""
        ...

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        """Return those of `refs` that exist. Cheap: a point lookup each."""
        ...

    async def has_any(self) -> bool:
        """Whether any project has a secret."""
        ...

    async def reseal(
        self, seal: Callable[[Stored], bytes | None]
    ) -> tuple[int, tuple[Stored, ...]]:
        """Replace every sealed value, of all projects, by what `seal` returns for it, all or none; None
        leaves a value as it is. Returns how many were replaced, and those that were left. `seal` runs in the
        writer's thread, so that nothing is added meanwhile, and its exceptions are raised here."""
        ...

    async def note_use(self, project_id: str, used: Sequence[tuple[str, int]], at: Nanos) -> None:
        """Record that programs were given these (name, version) at `at` (ns since the epoch); deleted ones
        are skipped."""
        ...

    async def delete(self, project_id: str, name: str, version: int = 0) -> None:
        """Delete one version, or all with `version` 0. Raises NotFound."""
        ...
