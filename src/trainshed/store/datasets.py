"""The store's port for datasets. Contract suite: tests/contract/store."""

from collections.abc import Callable
from typing import Protocol

from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.store.records import Operation


class Datasets(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(self, dataset: Dataset, operation: Operation) -> None:
        """Store a dataset with the finished operation of its creation. Raises AlreadyExists."""
        ...

    async def dataset(self, name: DatasetName) -> Dataset:
        """Raises NotFound."""
        ...

    async def datasets(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[Dataset, ...]:
        """Return datasets, newest first, after the dataset id `after` if that is not ""."""
        ...

    async def change(
        self,
        name: DatasetName,
        change: Callable[[Dataset], Dataset],
        operation: Operation | None = None,
    ) -> Dataset:
        """Replace a dataset by what `change`, a pure function, returns for it, in one step, and store the
        finished operation of the change. Raises NotFound, and what `change` raises."""
        ...

    async def delete(self, name: DatasetName, operation: Operation) -> None:
        """Delete a dataset's record; its files stay. Raises NotFound."""
        ...
