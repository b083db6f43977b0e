"""What every store promises of datasets (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.study_samples import make_dataset, told
from trainshed.core.errors import NotFound
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio


async def test_a_change_is_made_with_its_operation_or_not_at_all(store: Store) -> None:
    dataset = make_dataset(1)
    with pytest.raises(NotFound):
        await store.datasets.change(dataset.name, lambda old: old, told(1))
    await store.datasets.create(dataset, told(2))
    await store.datasets.change(dataset.name, lambda old: replace(old, display_name="new"), told(3))
    assert (await store.datasets.dataset(dataset.name)).display_name == "new"
    assert await store.reader.operation(told(3).name) == told(3)
    await store.datasets.delete(dataset.name, told(4))
    with pytest.raises(NotFound):
        await store.datasets.dataset(dataset.name)
    with pytest.raises(NotFound):
        await store.datasets.delete(dataset.name, told(5))
