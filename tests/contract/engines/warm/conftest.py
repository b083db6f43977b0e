"""The runtime of the tests of warm starts."""

import pytest

from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.warm.runtimes import MINORS, ToyRuntime
from trainshed.replica.protocol import LEVEL_SESSION


@pytest.fixture(scope="package", params=MINORS, ids=lambda minor: "{}.{}".format(*minor))
def runtime(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> ToyRuntime:
    return ToyRuntime(tmp_path_factory.mktemp("warm"), request.param)


@pytest.fixture
async def harness(harness: EngineHarness) -> EngineHarness:
    """An engine that keeps its preloaders during the test."""
    if harness.engine.build_place().host.level == LEVEL_SESSION:
        pytest.skip("nothing begins warm at this level")
    await harness.restart(warm_idle=60.0)
    return harness
