"""What every store promises of tensorboards (`trainshed.store.resources`)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.store.metadata_samples import make_board
from tests.contract.store.study_samples import told
from trainshed.core.errors import InvalidRequest, NotFound
from trainshed.core.tensorboards.records import BoardResource, Level, ValueType
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
