"""A worker of the benchmark. It reads commands as JSON lines from a socket pair and answers each.

    {"do": "join", "by": "torch"}                                          join the others
    {"do": "keep", "on": false}                                            keep data for faults, or not: see
    `retention`
    {"do": "take", "kind": "all-reduce", "nbytes": N, "dtype": "float32"}  the next work; or "training",
    with "bucket"
    {"do": "prepare", "number": I}
    {"do": "go", "at": SECONDS}                                            start at that time, answer at
    the end
    {"do": "check"}

The measured network carries none of this. The worker exits when the socket closes.
"""

import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable

from bench.reduction.retention import Retention
from bench.reduction.works import AllReduce, Answer, Communication, Torch, Training, Work, wait_until

CHANNEL = "BENCH_CHANNEL"
"""Environment variable with the descriptor of the command socket."""


class Worker:
    def __init__(self) -> None:
        self._ranks: Communication | None = None
        self._work: Work | None = None
        self._used = 0.0
        self._retention: Retention | None = None

    def join(self) -> Answer:
        self._ranks = Torch()
        return self._ranks.facts()

    def keep(self, *, on: bool) -> Answer:
        self._retention = self._retention or Retention()
        self._retention.keep(on)
        return {}

    def take(self, kind: str, nbytes: int, dtype: str = "", bucket: float | None = None) -> Answer:
        ranks = self._communication
        # Drop the previous work first: memory suffices for one.
        self._work = None
        if kind == "training":
            self._work = Training(ranks.rank, nbytes, bucket)
        else:
            self._work = AllReduce(ranks, nbytes, dtype)
        # An interpreter does this once after its imports, for a tenth of a second. It must not be in the
        # timed part.
        gc.collect()
        return {}

    def prepare(self, number: int) -> Answer:
        self._current_work.prepare(number)
        return {}

    def go(self, at: float) -> Answer:
        work = self._current_work
        wait_until(at)
        self._used = time.process_time()
        work.run()
        return {"seconds": time.monotonic() - at}

    def check(self) -> Answer:
        # All other workers and the background part of the operation have finished.
        used = time.process_time() - self._used
        return self._current_work.check() | {"processor": used}

    @property
    def _communication(self) -> Communication:
        assert self._ranks is not None, "it received work before it has joined"
        return self._ranks

    @property
    def _current_work(self) -> Work:
        assert self._work is not None, "it received a run command before work"
        return self._work


def main() -> int:
    channel = socket.socket(fileno=int(os.environ[CHANNEL]))
    worker = Worker()
    doings: dict[str, Callable[..., Answer]] = {
        "join": worker.join,
        "keep": worker.keep,
        "take": worker.take,
        "prepare": worker.prepare,
        "go": worker.go,
        "check": worker.check,
    }
    for line in channel.makefile("r", encoding="utf-8"):
        words = json.loads(line)
        try:
            answer = doings[words.pop("do")](**words)
        except Exception:
            answer = {"error": traceback.format_exc()}
        channel.sendall(json.dumps(answer).encode() + b"\n")
    # The exit of a user's program is not measured here and must not wait for the others.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
