"""Counters of a reducer's work and waits: of one thread, and of all together, as people and the service see
them.

Pure, except for what an overview writes.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from trainshed_reduction.native.reducing import Numbers
from trainshed_reduction.reports import Reports

Metrics = Dict[str, Any]
"""Whole numbers, and seconds by rank; empty before anything was reported."""
_WAIT = "wait_seconds"
_SAME_EVERYWHERE = ("operations", "connections")
"""Every thread takes part in every operation of every worker."""


class Counters:
    """What one thread has counted since its start, beside the part in C; the last two are current values."""

    def __init__(self) -> None:
        #: How often a group began again because a connection broke.
        self.resets = 0
        self.refused = 0
        self.connections = 0
        self.chunks_in_flight = 0

    def snapshot(self, done: Numbers, waited: Sequence[float]) -> Metrics:
        """Return all numbers. `done`: what the part in C has counted; `waited`: by rank, the seconds in which
        a group waited for it alone."""
        return {
            "received_bytes": done.received,
            "sent_bytes": done.sent,
            "operations": done.operations,
            "chunks": done.chunks,
            **vars(self),
            "pending_bytes": done.pending,
            _WAIT: [round(seconds, 3) for seconds in waited],
        }


def total(snapshots: Iterable[Metrics]) -> Metrics:
    """Return the numbers of all threads: counts are added up; what all threads see is counted once."""
    known = [snapshot for snapshot in snapshots if snapshot]
    numbers: Metrics = {}
    for name in known[0] if known else ():
        values = [snapshot[name] for snapshot in known]
        if name == _WAIT:
            numbers[name] = [
                round(sum(snapshot), 3) for snapshot in zip_longest(*values, fillvalue=0.0)
            ]
        else:
            numbers[name] = max(values) if name in _SAME_EVERYWHERE else sum(values)
    return numbers


Outlet = Callable[[str, object], None]
"""Takes what a thread reports, by its kind: `log`, a line; `serving`, how many workers a complete group has;
`metrics`, the current numbers, if they have changed. It neither blocks for long nor raises."""


IDLE_SECONDS = 60.0
"""Seconds without any worker until that is reported."""
_SECOND = 1.0
_SAME = 5.0
"""Seconds in which equal lines are one event, logged by several threads."""
_SPAN = 10.0
_LINES = 50
"""Most lines in _SPAN seconds; more would drown all others."""


class Overview:
    """All threads of a reducer together. Times are seconds of one clock."""

    def __init__(
        self, threads: int, reports: Reports, write: Callable[[str], None], now: float
    ) -> None:
        self._reports = reports
        #: Takes a line.
        self._write = write
        self._numbers: List[Metrics] = [{} for _ in range(threads)]
        self._idle_at: float = now + IDLE_SECONDS
        self._report_at = 0.0
        self._reported = now - _SECOND
        self._said: Dict[str, float] = {}
        self._span_from = now
        self._lines = 0

    @property
    def moment(self) -> Optional[float]:
        """When `keep_time` has something to do."""
        return min((at for at in (self._idle_at, self._report_at) if at), default=None)

    def hear(self, thread: int, what: str, value: Any, now: float) -> None:
        """Handle what a thread reports (`Outlet`)."""
        if what == "log":
            self.log(value, now)
        elif what == "serving":
            self.serving(value)
        else:
            self.metrics(thread, value, now)

    def log(self, text: str, now: float) -> None:
        if now - self._said.get(text, now - _SAME) < _SAME:
            return
        if now - self._span_from >= _SPAN:
            left_out = self._lines - _LINES
            self._span_from, self._lines = now, 0
            self._said.clear()
            if left_out > 0:
                self._write(f"{left_out} lines like those before were left out")
        self._said[text] = now
        self._lines += 1
        if self._lines <= _LINES:
            self._write(text)

    def serving(self, world: int) -> None:
        self._idle_at = 0.0
        self._reports.note("serving", f"serving {world} workers")

    def metrics(self, thread: int, numbers: Metrics, now: float) -> None:
        self._numbers[thread] = numbers
        if numbers.get("connections"):
            self._idle_at = 0.0
        self._report_at = self._report_at or max(now, self._reported + _SECOND)
        self.keep_time(now)

    def keep_time(self, now: float) -> None:
        if self._report_at and now >= self._report_at:
            self.report()
            self._reported = now
            self._report_at = 0.0
        if self._idle_at and now >= self._idle_at:
            self._idle_at = 0.0
            text = (
                f"No worker has connected for {IDLE_SECONDS:.0f} s: the reducers of worker pool 2 serve "
                "PyTorch (torch >= 2.7, DistributedDataParallel with gloo or nccl); TensorFlow, Horovod "
                "and programs that call NCCL themselves do not use them. Take worker pool 2 out of the "
                "job, or see the guide on the Reduction Server for what the workers' image must have."
            )
            # The service puts a note into the log itself.
            if not self._reports.note("idle", text, "WARNING"):
                self.log(text, now)

    def report(self) -> None:
        self._reports.metrics(total(self._numbers))
