"""The scheduler's part of a change, called through the controller's interface: one job ends or arrives while
many wait."""

import time
from collections.abc import Iterable
from itertools import count

from msgspec.structs import replace

from bench.history import T0, job_of
from trainshed.controller.capacity import CapacityTracker
from trainshed.core.capacity import Node
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.scheduler.model import Admit, Policy

RUNNING = 500
"""Default number of jobs for which capacity is available. The other jobs wait."""


class Passes:
    """A scheduler with the jobs of `live`, and with nodes for `RUNNING` of them. Further jobs have the UIDs
    from `next_uid` on."""

    def __init__(self, live: Iterable[Job], next_uid: int) -> None:
        self._room = CapacityTracker(Policy(strict=True), _never, lambda _: None, 10**9)
        self._now = T0 + 10**18
        self._new = (job_of(uid, is_over=False) for uid in count(next_uid))
        self._live: dict[int, Job] = {}
        for job in live:
            self._put(job)
        fit = min(RUNNING, len(self._live) // 2)
        # The jobs of `history` have two replicas with four CPUs each.
        self._room.set_nodes([Node(f"node-{i}", 8.0, 64 << 30) for i in range(fit)])
        self._running: list[int] = []
        # A decision starts a limited number of jobs. The next one follows immediately.
        while decided := self._admit():
            self._running += decided
            self._room.time_passed()
        if len(self._running) != fit:
            raise RuntimeError(f"{len(self._running)} jobs were admitted where {fit} fit")

    def measure_end(self) -> float:
        """Return the milliseconds from the end of a running job to the decision about the next job."""
        job = self._live.pop(self._running.pop(0))
        over = replace(job, state=JobState.SUCCEEDED)
        begun = time.perf_counter()
        self._room.put(over)
        decided = self._admit()
        took = (time.perf_counter() - begun) * 1e3
        if len(decided) != 1:
            raise RuntimeError(f"{len(decided)} jobs were admitted in place of one")
        self._running += decided
        self._put(next(self._new))
        self._room.decide(self._now)
        return took

    def measure_arrival(self) -> float:
        """Return the milliseconds for a job that must wait, from its arrival until its wait reason is
        reported."""
        job = next(self._new)
        begun = time.perf_counter()
        self._room.put(job)
        decided = self._admit()
        waits = self._room.explain_wait(job.uid, self._now)
        took = (time.perf_counter() - begun) * 1e3
        if decided or waits is None:
            raise RuntimeError("a job was admitted without free capacity")
        self._room.forget(job.uid)
        self._room.decide(self._now)
        return took

    def _put(self, job: Job) -> None:
        self._live[job.uid] = job
        self._room.put(job)

    def _admit(self) -> list[int]:
        made = self._room.decide(self._now)
        return [decision.uid for decision in made if isinstance(decision, Admit)]


def _never(at: int) -> None:
    """A clock whose time never changes."""
