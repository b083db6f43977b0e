"""Programs of several ranks with reducers, as a job runs them: env://, and the distribution in front of their
packages."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.reduction.reducers import TOKEN, Address
from trainshed_reduction import variables

PROGRAMS = Path(__file__).resolve().parents[1] / "e2e" / "programs" / "reduction"
SECONDS = 150.0
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
    """Of a program that has the distribution in `site`; nothing that a job around the tests may have set."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("TRAINSHED_RED", "TORCH", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
        )
    }
    return {**own, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", **more}


def with_reducers(addresses: tuple[Address, ...], **more: str) -> dict[str, str]:
    return {
        variables.REDUCERS: ",".join("{}:{}".format(*each) for each in addresses),
        variables.TOKEN: TOKEN.decode(),
        variables.START_LIMIT: "60",
        **more,
    }


def run_ranks(
    python: Path | str,
    program: str,
    ranks: int,
    environ: Mapping[str, str],
    when: Mapping[str, Callable[[], None]] | None = None,
) -> list[Ended]:
    """Run them to their end. `when`: what to do when a rank prints that line."""
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
            when or {},
        )
        for rank in range(ranks)
    ]
    return [each.ended() for each in running]


def run_one(python: Path | str, arguments: list[str], environ: Mapping[str, str]) -> Ended:
    command = [str(python), str(PROGRAMS / arguments[0]), *arguments[1:]]
    return _Rank(command, environ, {}).ended()


class _Rank:
    def __init__(
        self, command: list[str], environ: Mapping[str, str], when: Mapping[str, Callable[[], None]]
    ) -> None:
        self._when = when
        self._process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._limit = threading.Timer(SECONDS, self._process.kill)
        self._limit.start()
        self._output: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output),
            threading.Thread(target=self._read_errors),
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

    def _read_output(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._output.append(line)
            if then := self._when.get(line.strip()):
                then()

    def _read_errors(self) -> None:
        assert self._process.stderr
        self._errors.extend(self._process.stderr)
