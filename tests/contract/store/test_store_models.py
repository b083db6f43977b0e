"""What every store promises of models (`trainshed.store.resources.Models`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import make_version, told
from trainshed.core.errors import NotFound
from trainshed.core.names import ModelName
from trainshed.core.pipelines.records import ModelVersion
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio

M = ModelName("p", "us-central1", "m")


async def registered(store: Store, *versions: ModelVersion) -> None:
    for number, version in enumerate(versions, 1):
        await store.models.register(version, told(number))


async def test_versions_are_replaced_all_or_none(store: Store) -> None:
    await registered(store, make_version("m", 1, "default", "old"), make_version("m", 2, "new"))
    first = replace(make_version("m", 1, "old"), labels=(), updated=T0 + 99)
    second = replace(make_version("m", 2, "best", "default"), display_name="renamed")
    await store.models.replace([first, second])
    assert await store.models.versions(M) == (second, first)
    assert await store.models.version(M, "") == second
    with pytest.raises(NotFound):
        await store.models.version(M, "new")
    with pytest.raises(NotFound):
        await store.models.replace([replace(first, display_name="half"), make_version("m", 3)])
    assert await store.models.versions(M) == (second, first)
