"""What every store promises of evaluations of models (`trainshed.store.resources`)."""

import pytest

from tests.contract.store.study_samples import (
    make_evaluation,
    make_version,
    told,
)
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


async def test_evaluations_go_with_their_version_and_their_model(filled: Store) -> None:
    await filled.models.delete_version(M, 2, told(3))
    assert (await ids(filled, 1), await ids(filled, 2)) == ([3, 2, 1], [])
    await filled.models.delete_model(M, told(4))
    await filled.models.register(make_version("m", 1, "default"), told(5))
    assert await ids(filled, 1) == []
