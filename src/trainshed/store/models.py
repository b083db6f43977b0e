"""The store's port for models and persistent resources. Contract suite: tests/contract/store."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.names import ModelName
from trainshed.core.pipelines.records import ModelVersion
from trainshed.core.units import Nanos
from trainshed.store.records import Operation


class PersistentResource(Struct, frozen=True):
    """A persistent resource, as it was registered."""

    name: str
    display_name: str
    #: The resource in public JSON, as the client gave it.
    public_json: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    labels: tuple[tuple[str, str], ...] = ()


class Models(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened. Writes take
    their finished operation and store it in the same transaction."""

    async def register(self, version: ModelVersion, operation: Operation) -> None:
        """Store a version: number 1 of a new model, or the one after the newest of a model that exists. It
        takes its aliases from other versions that had them. Raises AlreadyExists (the version exists),
        NotFound (it is a later version, and the model does not exist)."""
        ...

    async def version(self, name: ModelName, version: str) -> ModelVersion:
        """Return a version by number or alias; "" = the default one. Raises NotFound."""
        ...

    async def models(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[ModelVersion, ...]:
        """Return the default version of each model, newest model first, after the model id `after` if that is
        not ""."""
        ...

    async def versions(self, name: ModelName) -> tuple[ModelVersion, ...]:
        """Return all versions, newest first. Raises NotFound."""
        ...

    async def replace(self, versions: Sequence[ModelVersion]) -> None:
        """Replace existing versions by these, with their new labels, names and aliases, all or none. Raises
        NotFound."""
        ...

    async def delete_model(self, name: ModelName, operation: Operation) -> None:
        """Delete a model with all its versions. Raises NotFound."""
        ...

    async def delete_version(self, name: ModelName, version: int, operation: Operation) -> None:
        """Raises NotFound, FailedPrecondition (the default version of a model that has others)."""
        ...

    async def create_persistent_resource(
        self, resource: PersistentResource, operation: Operation
    ) -> None:
        """Raises AlreadyExists."""
        ...

    async def persistent_resource(self, name: str) -> PersistentResource:
        """Raises NotFound."""
        ...

    async def persistent_resources(
        self, parent: str, after: str, limit: int
    ) -> tuple[PersistentResource, ...]:
        """Return resources below `parent` (projects/P/locations/L), ascending by name."""
        ...

    async def replace_persistent_resource(
        self, resource: PersistentResource, operation: Operation
    ) -> None:
        """Raises NotFound."""
        ...

    async def delete_persistent_resource(self, name: str, operation: Operation) -> None:
        """Raises NotFound."""
        ...
