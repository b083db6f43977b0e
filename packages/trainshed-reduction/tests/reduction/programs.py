"""Programs of several ranks with reducers, as a job runs them: env://, and the distribution in front of their
packages."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.nursery import Forked, Nursery
from tests.ports import free_port
from tests.reduction.reducers import TOKEN, Address
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
    """Of a program that has the distribution in `site`; nothing that a job around the tests may have set but
    where the part in C is."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name == variables.NATIVE
        or not name.startswith(
            ("TRAINSHED_RED", "TORCH", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
        )
    }
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
    running = [
        _Rank(
            [str(python), str(PROGRAMS / program)],
            # A report is a replica's, and each of these stands for one.
            {
                **common,
                "RANK": str(rank),
                variables.REPLICA: f"workerpool1-{rank}",
                **({variables.REPORT_FILE: ""} if rank else {}),
            },
            nursery if rank >= started else None,
        )
        for rank in range(ranks)
    ]
    return [program.ended() for program in running]


def run_one(
    python: Path | str,
    arguments: list[str],
    environ: Mapping[str, str],
    nursery: Nursery | None = None,
) -> Ended:
    command = [str(python), str(PROGRAMS / arguments[0]), *arguments[1:]]
    return _Rank(command, environ, nursery).ended()


class _Rank:
    def __init__(
        self,
        command: list[str],
        environ: Mapping[str, str],
        nursery: Nursery | None = None,
    ) -> None:
        output, plan_end = os.pipe()
        errors, complained = os.pipe()
        self._process: subprocess.Popen[bytes] | Forked
        if nursery is None:
            self._process = subprocess.Popen(
                command, env=environ, stdout=plan_end, stderr=complained
            )
        else:
            words = [str(FORKED), *command[1:]]
            self._process = nursery.fork(words, environ, stdout=plan_end, stderr=complained)
        os.close(plan_end)
        os.close(complained)
        self._limit = threading.Timer(SECONDS, self._process.kill)
        self._limit.start()
        self._output: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, args=(output,)),
            threading.Thread(target=self._read_errors, args=(errors,)),
        ]
        for reader in self._readers:
            reader.start()

    def ended(self) -> Ended:
        status = self._process.wait()
        self._limit.cancel()
        for reader in self._readers:
            reader.join()
        ended = Ended(status, "".join(self._output), "".join(self._errors))
        if status:
            print(ended.errors, file=sys.stderr)
        return ended

    def _read_output(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as lines:
            self._output.extend(lines)

    def _read_errors(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as lines:
            self._errors.extend(lines)
