"""The benchmarks begin as `./dev` begins them: as modules, with nothing on the path but the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["bench", "bench.reduction", "bench.tuning", "bench.peers"])
def test_a_benchmark_says_what_it_takes(module: str) -> None:
    """spec/operations: what the tests have on their path besides, users have not."""
    ended = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "usage:" in ended.stdout
