"""Runs programs with several ranks and reducers as a job does: with env://, and the package first on the
Python path."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.fork_server import ForkServer
from tests.ports import free_port
from tests.reduction.reducers import TOKEN, Address, without_job
from tests.sources import ROOT
from trainshed_reduction import variables

PROGRAMS = ROOT / "tests/e2e/programs/reduction"
FORKED = Path(__file__).with_name("forked_rank.py")
SECONDS = 300.0
PREFIX = "trainshed reduction: "


@dataclass(frozen=True)
class RankResult:
    """A rank's exit status and output."""

    status: int
    output: str
    errors: str

    @property
    def package_lines(self) -> list[str]:
        """Return the lines of the package trainshed_reduction in standard error."""
        return [line for line in self.errors.splitlines() if line.startswith(PREFIX)]


def environment(site: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program whose package trainshed_reduction is in `site`."""
    own = without_job("TORCH", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    return {**own, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", **more}


def with_reducers(addresses: tuple[Address, ...], **more: str) -> dict[str, str]:
    return {
        variables.REDUCERS: ",".join("{}:{}".format(*address) for address in addresses),
        variables.TOKEN: TOKEN.decode(),
        variables.START_SECONDS: "60",
        **more,
    }


def run_ranks(
    python: Path | str,
    program: str,
    ranks: int,
    environ: Mapping[str, str],
    fork_server: ForkServer | None = None,
    started: int = 0,
) -> list[RankResult]:
    """Run the ranks of a program until they exit. `fork_server`: forks all ranks except the first `started`,
    with PyTorch imported."""
    common = {
        **environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }

    def run_rank(rank: int) -> RankResult:
        # A report belongs to a replica, and each rank simulates one.
        own = {"RANK": str(rank), variables.REPLICA: f"workerpool1-{rank}"}
        own |= {variables.REPORT_FILE: ""} if rank else {}
        return run_one(python, [program], common | own, fork_server if rank >= started else None)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run_rank, range(ranks)))


def run_one(
    python: Path | str,
    arguments: list[str],
    environ: Mapping[str, str],
    fork_server: ForkServer | None = None,
) -> RankResult:
    words = [str(PROGRAMS / arguments[0]), *arguments[1:]]
    if fork_server is None:
        done = subprocess.run(
            [python, *words], env=environ, capture_output=True, timeout=SECONDS, check=False
        )
    else:
        done = fork_server.run([str(FORKED), *words], environ, seconds=SECONDS)
    ended = RankResult(done.returncode, done.stdout.decode(), done.stderr.decode())
    if ended.status:
        print(ended.errors, file=sys.stderr)
    return ended
