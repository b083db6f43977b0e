"""Fixtures and settings of all tests. Event loops have the same implementation as those of the service.

Virtual time has a loop of its own (`tests.sim.virtual`). Programs that tests start choose their own loop.
"""

import asyncio
import gc
import importlib
import os
from typing import Any

import hypothesis
import pytest
import uvloop
from hypothesis import given
from hypothesis.strategies import none
from tests.skips import summary
from tests.soaks import SOAKS

# Use one thread, like the service: several threads compete where tests run in parallel.
with pytest.MonkeyPatch.context() as loading:
    loading.setenv("OPENBLAS_NUM_THREADS", os.environ.get("OPENBLAS_NUM_THREADS", "1"))
    importlib.import_module("numpy.linalg")

# The only way to change the loops that pytest plug-ins and libraries create, until Python 3.16.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # pyright: ignore[reportDeprecated] - see above

# The number of examples is the same on busy machines. The default is half of Hypothesis's: it is enough to
# find the bugs that ./dev mutants plants.
PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("all", PATIENT)
hypothesis.settings.register_profile("some", PATIENT, max_examples=50)
hypothesis.settings.load_profile("all" if SOAKS else "some")

SLOWEST_FILES = (
    "reduction/test_torch.py",
    "slurm/",
    "engines/test_conformance.py",
    "engines/test_remote.py",
    "e2e/test_gcloud_ml.py",
    "e2e/test_grpc_clients.py",
    "e2e/",
    "reduction/",
    "contract/",
    "engines/",
    "unit/test_studies_",
)
"""Tests in the order in which they start. The longest start first, so that no worker runs one at the end
while the others are idle. The first test builds the environment that the others need. All other tests come
after these.
"""

TOGETHER = {
    "runtimes": (
        "contract/runtimes/test_families.py",
        "contract/runtimes/test_runtimes_archives.py",
        "contract/runtimes/test_runtimes_built.py",
        "contract/runtimes/test_setup_script_confinement.py",
        "contract/runtimes/test_runtimes_layers.py",
    ),
    "slurm": (
        "slurm/test_cluster.py",
        "slurm/test_doctor.py",
        "slurm/test_hostile.py",
        "slurm/test_same_results.py",
        "slurm/test_service_faults.py",
    ),
    "users of slurm": (
        "slurm/test_conformance_users.py",
        "slurm/test_identity.py",
        "slurm/test_ordinary_user.py",
    ),
    "clients of Google's": (
        "e2e/test_autologging.py",
        "e2e/test_datasets_sdk.py",
        "e2e/test_emulate.py",
        "e2e/test_experiments_sdk.py",
        "e2e/test_gcloud_ml.py",
        "e2e/test_gcloud_vertex.py",
        "e2e/test_grpc_clients.py",
        "e2e/test_job_curves.py",
        "e2e/test_pipelines.py",
        "e2e/test_sdk.py",
        "e2e/test_team.py",
        "e2e/test_tuning_sdk.py",
        "unit/test_wire_routes.py",
    ),
}
"""Files that share expensive set-up, such as an environment, a cluster or processes with the Vertex SDK and
gcloud. One worker runs them.
"""


# Collected objects live until the end. Scanning them in every garbage collection would take a quarter of the
# time.
gc.disable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Return whether a test function is a coroutine function."""
    return "asyncio"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselect tests of a suite that mostly repeats another one. Such a suite has a tuple of words
    `in_short`. Of its inherited tests, those without any of these words in their names become soaks.
    """
    for item in items:
        suite: Any = getattr(item, "cls", None)
        words = getattr(suite, "in_short", ("",))
        if not any(word in item.name for word in words) and item.name not in vars(suite):
            item.add_marker(pytest.mark.soak)
    items.sort(key=lambda item: _rank(item.nodeid))


def _draw_nothing(_: None) -> None:
    pass


def pytest_collection_finish() -> None:
    # On Python 3.14 the collector warns about Hypothesis's random numbers if their owner was frozen before
    # their creation.
    hypothesis.settings(database=None)(given(none())(_draw_nothing))()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)


def _rank(nodeid: str) -> int:
    inside = nodeid.partition("tests/")[2]
    ranks = (rank for rank, name in enumerate(SLOWEST_FILES) if inside.startswith(name))
    return next(ranks, len(SLOWEST_FILES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    scheduler: Any = importlib.import_module("xdist.scheduler")
    group_of = {name: group for group, names in TOGETHER.items() for name in names}

    class Files(scheduler.LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return group_of.get(path.partition("tests/")[2], path)

    return Files(config, log)
