"""What the threads of a reducer say, all together, as people and the service see it.

Pure, except for what an overview writes.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from trainshed_reduction.reports import Reports

Outlet = Callable[[str, object], None]
"""Takes what a thread reports, by its kind: `log`, a line; `serving`, how many workers a complete group has;
`connected`, a worker's rank. It neither blocks for long nor raises."""


IDLE_SECONDS = 60.0
"""Seconds without any worker until that is reported."""
_SAME = 5.0
"""Seconds in which equal lines are one event, logged by several threads."""
_SPAN = 10.0
_LINES = 50
"""Most lines in _SPAN seconds; more would drown all others."""


class Overview:
    """All threads of a reducer together. Times are seconds of one clock."""

    def __init__(self, reports: Reports, write: Callable[[str], None], now: float) -> None:
        self._reports = reports
        #: Takes a line.
        self._write = write
        #: When there is a verdict; None: it has been given, or will never be.
        self.moment: Optional[float] = now + IDLE_SECONDS
        self._said: Dict[str, float] = {}
        self._span_from = now
        self._lines = 0

    def hear(self, what: str, value: Any, now: float) -> None:
        """Handle what a thread reports (`Outlet`)."""
        if what == "log":
            self.log(value, now)
        elif what == "serving":
            self.serving(value)
        else:
            self.connected()

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
        self._reports.note("serving", f"serving {world} workers")

    def connected(self) -> None:
        self.moment = None

    def keep_time(self, now: float) -> None:
        if self.moment is not None and now >= self.moment:
            self.moment = None
            text = (
                f"No worker has connected for {IDLE_SECONDS:.0f} s: the reducers of worker pool 2 serve "
                "PyTorch (torch >= 2.7, DistributedDataParallel with gloo or nccl); TensorFlow, Horovod "
                "and programs that call NCCL themselves do not use them. Take worker pool 2 out of the "
                "job, or see the guide on the Reduction Server for what the workers' image must have."
            )
            # The service puts a note into the log itself.
            if not self._reports.note("idle", text, "WARNING"):
                self.log(text, now)
