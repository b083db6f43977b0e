"""What every store promises of models (`trainshed.store.resources.Models`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import (
    make_version,
    told,
)
from trainshed.core.errors import AlreadyExists, NotFound, Unavailable
from trainshed.core.names import ModelName
from trainshed.core.pipelines.records import ModelVersion
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio

M = ModelName("p", "us-central1", "m")


async def registered(store: Store, *versions: ModelVersion) -> None:
    for number, version in enumerate(versions, 1):
        await store.models.register(version, told(number))


async def test_what_does_not_exist_is_not_found_and_tells_no_operation(store: Store) -> None:
    await registered(store, make_version("m", 1, "default"))
    other = replace(M, model_id="other")
    for call in (
        store.models.register(make_version("other", 2), told(9)),
        store.models.version(other, ""),
        store.models.versions(other),
        store.models.replace([make_version("m", 1), make_version("m", 2)]),
        store.models.delete_model(other, told(9)),
        store.models.delete_version(M, 2, told(9)),
        store.models.delete_version(other, 1, told(9)),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        await store.reader.operation(told(9).name)
    assert await store.models.version(M, "") == make_version("m", 1, "default")


async def test_a_version_that_is_there_is_refused(store: Store) -> None:
    await registered(store, make_version("m", 1, "default"), make_version("m", 2))
    for number in (1, 2):
        with pytest.raises(AlreadyExists):
            await store.models.register(make_version("m", number, "default", "x"), told(9))
    assert (await store.models.version(M, "")).version == 1
    with pytest.raises(NotFound):
        await store.models.version(M, "x")
    with pytest.raises(NotFound):
        await store.reader.operation(told(9).name)
    with pytest.raises(Unavailable):
        await store.models.register(make_version("m", 3), told(1))
    assert len(await store.models.versions(M)) == 2


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
