"""What every store promises of evaluations of models (`trainshed.store.resources`)."""

import pytest

from tests.contract.store.study_samples import (
    make_evaluation,
    make_version,
    told,
)
from trainshed.core.errors import NotFound
from trainshed.core.names import ModelName
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio

M = ModelName("p", "us-central1", "m")


@pytest.fixture
async def filled(store: Store) -> Store:
    """Two versions: the first with three evaluations, the second with one."""
    await store.models.register(make_version("m", 1, "default"), told(1))
    await store.models.register(make_version("m", 2), told(2))
    for number in (1, 2, 3):
        await store.evaluations.add(make_evaluation(number))
    await store.evaluations.add(make_evaluation(4, version=2))
    return store


async def ids(store: Store, version: int, below: int = 0, limit: int = 9) -> list[int]:
    found = await store.evaluations.evaluations(M, version, below, limit)
    return [each.name.evaluation_id for each in found]


async def test_evaluations_are_of_one_version_newest_first(filled: Store) -> None:
    assert (await ids(filled, 1), await ids(filled, 2)) == ([3, 2, 1], [4])
    assert await ids(filled, 1, limit=2) == [3, 2]
    assert await ids(filled, 1, below=2) == [1]
    assert await filled.evaluations.evaluation(make_evaluation(2).name) == make_evaluation(2)


async def test_what_is_not_there_is_not_found(filled: Store) -> None:
    nobody = make_evaluation(9).name
    for call in (
        filled.evaluations.add(make_evaluation(5, version=3)),
        filled.evaluations.evaluation(nobody),
    ):
        with pytest.raises(NotFound):
            await call
    assert await ids(filled, 3) == []


async def test_evaluations_go_with_their_version_and_their_model(filled: Store) -> None:
    await filled.models.delete_version(M, 2, told(3))
    assert (await ids(filled, 1), await ids(filled, 2)) == ([3, 2, 1], [])
    await filled.models.delete_model(M, told(4))
    await filled.models.register(make_version("m", 1, "default"), told(5))
    assert await ids(filled, 1) == []
