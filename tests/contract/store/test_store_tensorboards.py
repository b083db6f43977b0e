"""What every store promises of tensorboards (`trainshed.store.resources`)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.store.metadata_samples import make_board
from tests.contract.store.study_samples import told
from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound
from trainshed.core.tensorboards.records import BoardName, BoardResource, Level, ValueType
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio
PLACE = "projects/p/locations/us-central1"


async def created(store: Store, *resources: BoardResource) -> None:
    await store.tensorboards.create(resources, told(1))


def series(series_id: str, name: str, **fields: Any) -> BoardResource:
    fields = {"value_type": ValueType.SCALAR, "plugin_name": "scalars", **fields}
    return make_board("t", "e", "r", series_id, display_name=name, **fields)


async def ids(
    store: Store, parent: str, level: Level, after: str = "", limit: int = 9
) -> list[str]:
    found = await store.tensorboards.below(parent, level, after, limit)
    return [each.name.own_id for each in found]


async def test_everything_is_read_back_and_stands_below_its_parent(store: Store) -> None:
    tree = make_board("t", labels=(("a", "b"),)), make_board("t", "e"), make_board("t", "e", "r")
    loss = series("s", "loss", plugin_data=b"\x00\xff")
    await created(store, *tree, loss)
    for resource in (*tree, loss):
        assert await store.tensorboards.resource(resource.name) == resource
    assert await store.reader.operation(told(1).name) == told(1)
    assert await ids(store, PLACE, Level.TENSORBOARD) == ["t"]
    assert await ids(store, str(tree[2].name), Level.SERIES) == ["s"]
    with pytest.raises(AlreadyExists):
        await store.tensorboards.create([tree[1]])
    for missing in (make_board("u", "e"), make_board("t", "f", "r")):
        with pytest.raises(NotFound):
            await store.tensorboards.create([make_board("v"), missing])
    assert await ids(store, PLACE, Level.TENSORBOARD) == ["t"]  # All or none.
    with pytest.raises(NotFound):
        await ids(store, f"{PLACE}/tensorboards/u", Level.EXPERIMENT)


async def test_lists_go_on_behind_an_id(store: Store) -> None:
    await created(
        store, make_board("t"), *(make_board("t", each) for each in ("c", "a", "b", "b-1"))
    )
    parent = f"{PLACE}/tensorboards/t"
    assert await ids(store, parent, Level.EXPERIMENT, limit=2) == ["a", "b"]
    assert await ids(store, parent, Level.EXPERIMENT, after="b") == ["b-1", "c"]


async def test_runs_are_read_with_their_series(store: Store) -> None:
    runs = [make_board("t", "e", run) for run in ("r", "other", "empty")]
    loss, accuracy = series("b", "loss"), series("a", "accuracy")
    await created(store, make_board("t"), make_board("t", "e"), *runs, loss, accuracy)
    names = (runs[2].name, make_board("t", "e", "nobody").name, runs[0].name)
    assert await store.tensorboards.runs(names) == ((runs[2], ()), (runs[0], (accuracy, loss)))
    assert await store.tensorboards.runs(()) == ()


async def test_one_tensorboard_of_a_location_is_the_default(store: Store) -> None:
    elsewhere = replace(make_board("x", is_default=True), name=BoardName("p", "us-east1", ("x",)))
    await created(
        store, make_board("a", is_default=True), make_board("b", is_default=True), elsewhere
    )

    async def defaults() -> list[str]:
        found = await store.tensorboards.below(PLACE, Level.TENSORBOARD, "", 9)
        return [each.name.own_id for each in found if each.is_default]

    assert await defaults() == ["b"]
    await store.tensorboards.change(make_board("a").name, lambda old: replace(old, is_default=True))
    assert await defaults() == ["a"]
    assert (await store.tensorboards.resource(elsewhere.name)).is_default


async def test_a_series_is_made_once_by_its_display_name(store: Store) -> None:
    run = make_board("t"), make_board("t", "e"), make_board("t", "e", "r")
    await created(store, *run, series("s", "loss"))
    assert await store.tensorboards.create([series("other", "loss")]) == (series("s", "loss"),)
    for different in ({"value_type": ValueType.TENSOR}, {"plugin_name": "images"}):
        with pytest.raises(InvalidRequest, match="already exist"):
            await store.tensorboards.create(
                [series("new", "acc"), series("other", "loss", **different)]
            )
    await store.tensorboards.create([series("acc", "acc")])
    with pytest.raises(InvalidRequest, match="already exist"):
        await store.tensorboards.change(
            series("acc", "").name,
            lambda old: replace(old, display_name="loss", plugin_name="images"),
        )


async def test_what_is_deleted_goes_with_all_that_is_below_it(store: Store) -> None:
    await created(
        store,
        make_board("t"),
        make_board("t", "e"),
        make_board("t", "e", "r"),
        make_board("t", "e-2"),
        make_board("t", "e-2", "r"),
        make_board("t-2"),
    )
    await store.tensorboards.create([series("s", "loss")])
    gone = await store.tensorboards.delete(make_board("t", "e").name, told(2))
    assert gone == (make_board("t", "e", "r").uid,)
    with pytest.raises(NotFound):
        await store.tensorboards.resource(series("s", "loss").name)
    assert await ids(store, f"{PLACE}/tensorboards/t", Level.EXPERIMENT) == ["e-2"]
    assert len(await store.tensorboards.delete(make_board("t").name, told(3))) == 1
    assert await ids(store, PLACE, Level.TENSORBOARD) == ["t-2"]
    with pytest.raises(NotFound):
        await store.tensorboards.delete(make_board("t").name, told(4))
