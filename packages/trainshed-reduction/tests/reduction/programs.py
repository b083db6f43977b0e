"""Programs of several ranks with reducers, as a job runs them: env://, and the distribution in front of their
packages."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.nursery import Nursery
from tests.ports import free_port
from tests.reduction.reducers import TOKEN, Address, without_job
from tests.sources import ROOT
from trainshed_reduction import variables

PROGRAMS = ROOT / "tests/e2e/programs/reduction"
FORKED = Path(__file__).with_name("forked_rank.py")
SECONDS = 300.0
PREFIX = "trainshed reduction: "


@dataclass(frozen=True)
class Ended:
    """A rank's exit status and what it said."""

    status: int
    output: str
    errors: str

    @property
    def said(self) -> list[str]:
        """The lines of the distribution itself."""
        return [line for line in self.errors.splitlines() if line.startswith(PREFIX)]


def environment(site: Path, **more: str) -> dict[str, str]:
    """Of a program that has the distribution in `site`."""
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
    nursery: Nursery | None = None,
    started: int = 0,
) -> list[Ended]:
    """Run them to their end. `nursery`: one that has loaded PyTorch; all but the first `started` ranks are
    forked by it."""
    common = {
        **environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }

    def ended(rank: int) -> Ended:
        # A report is a replica's, and each of these stands for one.
        own = {"RANK": str(rank), variables.REPLICA: f"workerpool1-{rank}"}
        own |= {variables.REPORT_FILE: ""} if rank else {}
        return run_one(python, [program], common | own, nursery if rank >= started else None)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(ended, range(ranks)))


def run_one(
    python: Path | str,
    arguments: list[str],
    environ: Mapping[str, str],
    nursery: Nursery | None = None,
) -> Ended:
    words = [str(PROGRAMS / arguments[0]), *arguments[1:]]
    if nursery is None:
        done = subprocess.run(
            [python, *words], env=environ, capture_output=True, timeout=SECONDS, check=False
        )
    else:
        done = nursery.run([str(FORKED), *words], environ, seconds=SECONDS)
    ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
    if ended.status:
        print(ended.errors, file=sys.stderr)
    return ended
