"""The store's door for secrets: numbered versions of sealed values. Contract suite: tests/contract/store.

Knows no value and no key: what it is given is sealed already (`access.sealing`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.secrets import SecretRef
from trainshed.core.units import Nanos


class SecretVersion(Struct, frozen=True):
    """What may be told of one version. `created`, `used`: ns; `used` 0 = no program was given it yet."""

    name: str
    version: int
    created: Nanos
    used: Nanos = 0


class Sealed(Struct, frozen=True):
    """A sealed value, and which version it is."""

    version: int
    content: bytes


class Stored(Struct, frozen=True):
    """A sealed value with all that it belongs to."""

    project_id: str
    name: str
    version: int
    content: bytes


class Secrets(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        """Store the next version of a secret, the first one of a new secret. `seal` is called with its number
        and returns what is stored; it runs in the writer's thread, and what it raises is raised here. Numbers
        of deleted versions are not used again."""
        ...

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        """All of a project, by name, newest version first."""
        ...

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        """Those of `refs` that are there. Cheap: a point lookup each."""
        ...

    async def has_any(self) -> bool:
        """Whether there is a secret in any project."""
        ...

    async def reseal(
        self, seal: Callable[[Stored], bytes | None]
    ) -> tuple[int, tuple[Stored, ...]]:
        """Put in the place of every sealed value, of all projects, what `seal` makes of it, all of them or
        none; None leaves one as it is. Returns how many were replaced, and those that were left. `seal` runs
        in the writer's thread, where nothing is added meanwhile, and what it raises is raised here."""
        ...

    async def note_use(self, project_id: str, used: Sequence[tuple[str, int]], at: Nanos) -> None:
        """Programs were given these (name, version) at `at` (ns); those that are gone are passed over."""
        ...

    async def delete(self, project_id: str, name: str, version: int = 0) -> None:
        """One version, 0 = all. Raises NotFound."""
        ...
