"""What the tests of these modules say over REST holds over gRPC too (issue 4, item 1): each is run again
there.

What a message cannot say (a body that is no JSON, an unknown field) skips itself, see `GrpcHouse.call`.
"""

from collections.abc import AsyncGenerator
from pathlib import Path
from types import ModuleType

import pytest

from tests.contract.api import (
    test_datasets,
    test_experiment_limits,
    test_model_evaluations,
    test_model_exports,
    test_models,
    test_training_pipelines,
    test_tuning_jobs,
)
from tests.contract.api.grpc_house import GrpcHouse

pytestmark = pytest.mark.anyio

_OF_REST_ALONE = {
    # A google.protobuf.Value holds doubles only (docs/adr/0016-grpc.md).
    "test_large_numbers_of_the_inputs_are_kept_as_they_were_sent",
}


def _mirror(module: ModuleType) -> None:
    topic = module.__name__.rpartition(".test_")[2]
    for name, test in vars(module).items():
        if name.startswith("test_") and callable(test) and name not in _OF_REST_ALONE:
            globals()[f"test_{topic}__{name.removeprefix('test_')}"] = test


for _module in (
    test_datasets,
    test_experiment_limits,
    test_models,
    test_model_evaluations,
    test_model_exports,
    test_training_pipelines,
    test_tuning_jobs,
):
    _mirror(_module)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[GrpcHouse]:
    async with GrpcHouse(tmp_path).open() as opened:
        yield opened
