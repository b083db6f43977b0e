"""The processes of one side in one run: workers that execute commands, and reducers that can be killed and
restarted."""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.e2e.running import ROOT

from bench.measures import cpu_seconds, family
from bench.reduction.network import Host
from bench.reduction.sides import Side, Surroundings
from bench.reduction.worker import CHANNEL
from trainshed.replica.system.kernel import die_with_parent

Answer = dict[str, Any]
SAID = "trainshed reduction: "
LAST = 1500
"""Maximum characters of a log that an error contains."""


class SideFailed(Exception):
    """A side has crashed, hung or returned wrong results. The message contains the process and its last
    output.
    """


@dataclass(frozen=True, slots=True)
class Doing:
    """An action at a time (monotonic seconds) while the workers run."""

    at: float
    do: Callable[[], None]


@dataclass(slots=True)
class _Worker:
    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    log: Path
    waiting: bytes = b""


@dataclass(slots=True)
class _Reducer:
    process: "subprocess.Popen[bytes]"
    #: CPU seconds of earlier processes of this reducer.
    used: float = 0.0
    logs: list[Path] = field(default_factory=list[Path])


class Processes:
    """The processes of one side, as a context manager that ends them all. If the side fails, its logs are
    kept, and the error contains their path."""

    def __init__(self, side: Side, around: Surroundings, python: Path, limit: float) -> None:
        """`python`: an interpreter with PyTorch. `limit`: maximum seconds for a response of the workers."""
        self.side = side
        self._around = around
        self._python = python
        self._limit = limit
        self._workers: list[_Worker] = []
        self._reducers: list[_Reducer] = []

    def __enter__(self) -> Self:
        self._logs = Path(tempfile.mkdtemp(prefix="trainshed-bench-reduction-"))
        try:
            if self.side.reduces:
                for index in range(len(self._around.reducers)):
                    self._reducers.append(self._start_reducer(index, 0))
            for rank in range(len(self._around.workers)):
                self._workers.append(self._start_worker(rank))
        except BaseException as failure:
            self.__exit__(type(failure))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        for worker in self._workers:
            worker.channel.close()
        for participant in (*self._workers, *self._reducers):
            _end(participant.process)
        if kind is None or not issubclass(kind, SideFailed):
            shutil.rmtree(self._logs, ignore_errors=True)

    def ask(self, **words: Any) -> list[Answer]:
        """Send a command to every worker. Return the responses in the order of ranks. Raises SideFailed."""
        self.tell(**words)
        return self.answers()

    def tell(self, **words: Any) -> None:
        line = json.dumps(words).encode() + b"\n"
        for rank, worker in enumerate(self._workers):
            try:
                worker.channel.sendall(line)
            except OSError as failure:
                raise self._failure(rank, "has ended") from failure

    def answers(self, doings: Sequence[Doing] = ()) -> list[Answer]:
        """Wait for one response of every worker, and return the responses. In the meantime, perform the
        actions that are due. Raises SideFailed."""
        answers: dict[int, Answer] = {}
        end = time.monotonic() + self._limit
        left = sorted(doings, key=lambda doing: doing.at)
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers):
                selector.register(worker.channel, selectors.EVENT_READ, rank)
            while len(answers) < len(self._workers) or left:
                now = time.monotonic()
                if left and left[0].at <= now:
                    left.pop(0).do()
                    continue
                if now > end:
                    rank = min(set(range(len(self._workers))) - set(answers))
                    raise self._failure(rank, f"gave no answer in {self._limit:g} s")
                until = min([end, *(doing.at for doing in left)])
                for key, _ in selector.select(until - now):
                    answer = self._receive(key.data)
                    if answer is not None:
                        answers[key.data] = answer
        return [answers[rank] for rank in range(len(self._workers))]

    def kill_reducer(self, index: int) -> None:
        """Send SIGKILL to all processes of a reducer, without a notification."""
        reducer = self._reducers[index]
        reducer.used += _seconds(reducer.process)
        _end(reducer.process)

    def start_reducer(self, index: int) -> None:
        """Restart a reducer as the service does."""
        reducer = self._reducers[index]
        again = self._start_reducer(index, len(reducer.logs))
        reducer.process = again.process
        reducer.logs += again.logs

    def messages(self) -> list[str]:
        """Return the messages of the distribution in the first worker's log."""
        lines = self._workers[0].log.read_text("utf-8", "replace").splitlines()
        return [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]

    def reducer_seconds(self) -> float:
        """Return the CPU seconds of all reducers so far."""
        return sum(reducer.used + _seconds(reducer.process) for reducer in self._reducers)

    def _start_reducer(self, index: int, incarnation: int) -> _Reducer:
        log = self._logs / f"reducer-{index}-{incarnation}.log"
        words = [str(self._python), "-m", "trainshed_reduction.reducer"]
        environ = self._around.of_reducer(self.side, index)
        return _Reducer(_start(self._around.reducers[index], words, environ, log), logs=[log])

    def _start_worker(self, rank: int) -> _Worker:
        ours, theirs = socket.socketpair()
        log = self._logs / f"worker-{rank}.log"
        environ = self._around.of_worker(self.side, rank) | {CHANNEL: str(theirs.fileno())}
        words = [str(self._python), "-m", "bench.reduction.worker"]
        with theirs:
            process = _start(self._around.workers[rank], words, environ, log, keep=(theirs.fileno(),))
        return _Worker(process, ours, log)

    def _receive(self, rank: int) -> Answer | None:
        worker = self._workers[rank]
        more = worker.channel.recv(1 << 16)
        if not more:
            raise self._failure(rank, "has ended")
        line, newline, rest = (worker.waiting + more).partition(b"\n")
        if not newline:
            worker.waiting = line
            return None
        worker.waiting = rest
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise self._failure(rank, "failed:\n" + answer["error"])
        return answer

    def _failure(self, rank: int, what: str) -> SideFailed:
        logs = [self._workers[rank].log, *(reducer.logs[-1] for reducer in self._reducers)]
        log_ends = [f"{log.name}: {_end_of(log)}" for log in logs]
        return SideFailed(
            "\n".join([f"{self.side.name}: worker {rank} {what}", *log_ends, f"Logs: {self._logs}"])
        )


def _start(
    host: Host, words: Sequence[str], environ: Mapping[str, str], log: Path, keep: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen(
            host.command(words),
            env={**_environment(), **environ},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=keep,
            cwd=ROOT,
            start_new_session=True,
            # The reducer must not survive the benchmark if the benchmark is killed.
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - this process has one thread
        )


def _environment() -> dict[str, str]:
    """Return the environment of this process, without the variables of its Python or of an enclosing job."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TRAINSHED", "VIRTUAL_ENV"))
    }


def _seconds(process: "subprocess.Popen[bytes]") -> float:
    """Return the CPU seconds of a process and its children."""
    return sum(cpu_seconds(pid) for pid in family(process.pid))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its descendants. Each process has its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-LAST:].strip() or "(nothing)"


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
