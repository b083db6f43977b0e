"""What every store promises of operations that are of no study (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import PLACE, make_study, suggesting
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.pipelines.records import ModelExport
from trainshed.store.port import Store
from trainshed.store.records import Operation, OperationKind

pytestmark = pytest.mark.anyio


def exporting(number: int, created: int = T0) -> Operation:
    return Operation(
        f"{PLACE}/operations/{number}",
        OperationKind.EXPORT,
        f"{PLACE}/models/m@1",
        created,
        created,
        OperationState.RUNNING,
        export=ModelExport("gs://b/m/", "gs://b/out/", "p", "a@example.com"),
    )


async def test_those_that_run_are_told_by_kind_and_oldest_first(store: Store) -> None:
    late, early = exporting(1, T0 + 1), exporting(2)
    await store.studies.create_study(make_study(1))
    await store.studies.begin_operation(suggesting(3, 1))
    for operation in (late, early):
        await store.operations.begin(operation)
    assert await store.operations.running(OperationKind.EXPORT) == (early, late)
    assert await store.reader.operation(late.name) == late
    assert (late.subject, suggesting(3, 1).subject) == (1, 1)


async def test_an_operation_ends_once(store: Store) -> None:
    running = exporting(1)
    done = replace(running, state=OperationState.SUCCEEDED, updated=T0 + 1)
    assert not await store.operations.finish(done)
    await store.operations.begin(running)
    with pytest.raises(Unavailable):
        await store.operations.begin(running)
    assert await store.operations.finish(done)
    assert not await store.operations.finish(replace(running, state=OperationState.FAILED))
    assert await store.operations.running(OperationKind.EXPORT) == ()
    assert await store.reader.operation(running.name) == done
