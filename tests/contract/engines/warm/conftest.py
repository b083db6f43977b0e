"""The runtime in which the tests of warm starts begin their programs."""

import pytest

from tests.contract.engines.warm.runtimes import MINORS, ToyRuntime


@pytest.fixture(scope="package", params=MINORS, ids=lambda minor: "{}.{}".format(*minor))
def runtime(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> ToyRuntime:
    return ToyRuntime(tmp_path_factory.mktemp("warm"), request.param)
