"""The benchmark of the Reduction Server, run for real in its smallest size: two workers, one reducer, a fast
link."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.reduction import environments, network
from bench.reduction.cases import MIB, Case, Task
from bench.reduction.figures import theory
from bench.reduction.network import CannotRun, Network
from bench.reduction.running import Bench
from bench.reduction.sides import ARRAYS

CASE = Case("tiny", 2, 1, 1000, (Task("4 MiB fp32", 4 * MIB, count=8),), 5, reducer_rate=2000)


@pytest.fixture
def able() -> None:
    """Skips where no network of namespaces can be made."""
    try:
        with Network(1, 0, 100, 0):
            pass
    except CannotRun as why:
        pytest.skip(f"the benchmark's network is NOT tested: {why}")


def namespaces() -> str:
    return subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.soak  # A benchmark.
@pytest.mark.usefixtures("able")
def test_a_case_is_measured_from_the_network_to_its_figures(tmp_path: Path) -> None:
    """spec/reduction#reducers: right results, a worker sends the tensor once, no faster than the links allow;
    nothing is left behind."""
    environments.package(tmp_path, Path(sys.executable))
    results = Bench(Path(sys.executable), tmp_path).run(CASE, [ARRAYS], 1)
    (task,) = CASE.tasks
    (sample,) = results.samples(ARRAYS.name, task)
    assert len(sample.seconds) == task.count
    assert sample.ordered
    assert len(set(sample.digests)) == task.count
    assert 1 <= sample.sent / task.nbytes <= 1.02
    assert sample.sent < sample.sent_on_wire < 1.1 * sample.sent
    bounds = theory(CASE, task.nbytes)
    assert bounds is not None
    # The queues' burst lets a little through at once.
    assert min(sample.seconds) > 0.8 * bounds.reducers
    assert sample.reducer_seconds > 0
    assert f"{network.PREFIX}{os.getpid()}-" not in namespaces()
