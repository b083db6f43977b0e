"""What every store promises of datasets (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import make_dataset, told
from trainshed.core.errors import AlreadyExists, NotFound
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio


async def test_a_dataset_is_read_back_and_its_name_is_taken(store: Store) -> None:
    dataset = make_dataset(1)
    await store.datasets.create(dataset, told(1))
    assert await store.datasets.dataset(dataset.name) == dataset
    assert await store.reader.operation(told(1).name) == told(1)
    with pytest.raises(AlreadyExists):
        await store.datasets.create(dataset, told(2))
    with pytest.raises(NotFound):
        await store.reader.operation(told(2).name)


async def test_datasets_of_a_location_are_listed_newest_first(store: Store) -> None:
    for number in (2, 1, 3):
        await store.datasets.create(make_dataset(number), told(number))
    await store.datasets.create(make_dataset(4, created=T0 + 3), told(4))
    elsewhere = replace(make_dataset(5).name, project_id="q")
    await store.datasets.create(replace(make_dataset(5), name=elsewhere), told(5))

    async def ids(after: str = "", limit: int = 9) -> list[str]:
        found = await store.datasets.datasets("p", "us-central1", after, limit)
        return [each.name.dataset_id for each in found]

    assert await ids() == ["d4", "d3", "d2", "d1"]
    assert await ids(limit=2) == ["d4", "d3"]
    assert await ids("d4") == ["d3", "d2", "d1"]
    assert await ids("gone") == []


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
