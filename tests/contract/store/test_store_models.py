"""What every store promises of models and persistent resources (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import (
    PLACE,
    make_resource,
    make_version,
    told,
)
from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from trainshed.core.names import ModelName
from trainshed.core.pipelines.records import ModelVersion
from trainshed.store.port import Store
from trainshed.store.records import OperationKind

pytestmark = pytest.mark.anyio

M = ModelName("p", "us-central1", "m")


async def registered(store: Store, *versions: ModelVersion) -> None:
    for number, version in enumerate(versions, 1):
        await store.models.register(version, told(number))


async def ids(store: Store, after: str = "", limit: int = 9) -> list[str]:
    found = await store.models.models("p", "us-central1", after, limit)
    return [version.name.model_id for version in found]


async def test_a_version_is_read_back_by_number_and_alias(store: Store) -> None:
    first = make_version("m", 1, "default", "champion")
    await registered(store, first)
    for asked in ("", "1", "default", "champion"):
        assert await store.models.version(M, asked) == first
    assert await store.reader.operation(told(1).name) == told(1)
    for missing in ("2", "0", "nobody", "1" * 30):
        with pytest.raises(NotFound):
            await store.models.version(M, missing)


async def test_what_does_not_exist_is_not_found_and_tells_no_operation(store: Store) -> None:
    await registered(store, make_version("m", 1, "default"))
    other = replace(M, model_id="other")
    name = make_resource("r").name
    for call in (
        store.models.register(make_version("other", 2), told(9)),
        store.models.version(other, ""),
        store.models.versions(other),
        store.models.replace([make_version("m", 1), make_version("m", 2)]),
        store.models.delete_model(other, told(9)),
        store.models.delete_version(M, 2, told(9)),
        store.models.delete_version(other, 1, told(9)),
        store.models.persistent_resource(name),
        store.models.replace_persistent_resource(make_resource("r"), told(9)),
        store.models.delete_persistent_resource(name, told(9)),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        await store.reader.operation(told(9).name)
    assert await store.models.version(M, "") == make_version("m", 1, "default")


async def test_a_new_version_takes_the_aliases_it_asks_for(store: Store) -> None:
    await registered(
        store,
        make_version("m", 1, "zebra", "default", "ape"),
        make_version("m", 2, "default", "new"),
        make_version("other", 1, "default", "ape"),
    )
    assert await store.models.versions(M) == (
        make_version("m", 2, "default", "new"),
        make_version("m", 1, "zebra", "ape"),
    )
    assert (await store.models.version(M, "")).version == 2
    assert (await store.models.version(M, "ape")).version == 1
    assert (await store.models.version(M, "1")).aliases == ("zebra", "ape")
    assert (await store.models.version(replace(M, model_id="other"), "ape")).version == 1


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


async def test_models_are_listed_newest_first_by_their_default_version(store: Store) -> None:
    await registered(
        store,
        make_version("b", 1, "default", created=T0 + 1),
        make_version("a", 1, "default", created=T0 + 2),
        make_version("c", 1, "default", created=T0 + 2),
        make_version("b", 2, created=T0 + 9),
        make_version("a", 2, "default", created=T0 + 9),
    )
    found = await store.models.models("p", "us-central1", "", 9)
    assert [(each.name.model_id, each.version) for each in found] == [("c", 1), ("a", 2), ("b", 1)]
    assert found[1] == await store.models.version(replace(M, model_id="a"), "")
    assert await ids(store, limit=2) == ["c", "a"]
    assert await ids(store, after="a") == ["b"]
    assert await ids(store, after="b") == []
    assert await store.models.models("p", "elsewhere", "", 9) == ()
    # The last one of a page may be deleted before the next is asked for.
    await store.models.delete_model(replace(M, model_id="a"), told(9))
    assert await ids(store, after="a") == ["b"]
    assert await ids(store) == ["c", "b"]


async def test_a_deleted_model_may_come_again(store: Store) -> None:
    await registered(store, make_version("m", 1, "default", "x"), make_version("m", 2, "y"))
    done = told(9, OperationKind.DELETE)
    await store.models.delete_model(M, done)
    assert await store.reader.operation(done.name) == done
    for call in (store.models.version(M, ""), store.models.versions(M)):
        with pytest.raises(NotFound):
            await call
    await store.models.register(make_version("m", 1, "default", created=T0 + 50), told(10))
    assert (await store.models.version(M, "")).aliases == ("default",)
    assert await ids(store) == ["m"]


async def test_the_default_version_stays_while_there_are_others(store: Store) -> None:
    await registered(store, make_version("m", 1, "default"), make_version("m", 2, "x"))
    with pytest.raises(FailedPrecondition):
        await store.models.delete_version(M, 1, told(9))
    await store.models.delete_version(M, 2, told(9))
    with pytest.raises(NotFound):
        await store.models.version(M, "x")
    assert await store.models.versions(M) == (make_version("m", 1, "default"),)
    # The last version goes with its model.
    await store.models.delete_version(M, 1, told(10))
    assert await ids(store) == []
    with pytest.raises(NotFound):
        await store.models.versions(M)


async def test_persistent_resources_are_kept_by_name(store: Store) -> None:
    for number, resource_id in enumerate(("b", "a", "c"), 1):
        await store.models.create_persistent_resource(make_resource(resource_id), told(number))
    elsewhere = make_resource("a", "projects/p/locations/us-central12")
    await store.models.create_persistent_resource(elsewhere, told(4))
    with pytest.raises(AlreadyExists):
        await store.models.create_persistent_resource(make_resource("a"), told(9))
    changed = replace(make_resource("a"), display_name="changed", updated=T0 + 1)
    await store.models.replace_persistent_resource(changed, told(5))
    assert await store.models.persistent_resource(changed.name) == changed
    first = await store.models.persistent_resources(PLACE, "", 2)
    assert first == (changed, make_resource("b"))
    rest = await store.models.persistent_resources(PLACE, first[-1].name, 2)
    assert rest == (make_resource("c"),)
    await store.models.delete_persistent_resource(changed.name, told(6))
    assert await store.models.persistent_resources(PLACE, "", 1) == (make_resource("b"),)
    for number in range(1, 7):
        assert await store.reader.operation(told(number).name) == told(number)
