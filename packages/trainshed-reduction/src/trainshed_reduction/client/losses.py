"""Detects reducers that send nothing and ranks that are lost."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.ledger import Entry, Ledger
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.process import Reports

_KEEPALIVE_TIMEOUT = 10.0
"""Seconds without a frame after which a reducer that owes results counts as silent. A reducer sends its
status every second while it waits for ranks."""
_FIRST_WARNING = 10.0
"""Seconds that a wait must last before it is logged for the first time."""


class LossDetector:
    """Detects silent reducers and lost ranks by measuring how long this rank has waited for them."""

    def __init__(self, limit: float, absence: float, log: Callable[[str], None]) -> None:
        #: Maximum seconds to wait for the next result on a lane, a connection to one thread of a reducer.
        self._limit = limit
        #: Maximum seconds for which a rank may be connected to no reducer.
        self._absence = absence
        self._log = log
        #: By index of the lane (connection to a reducer): the first chunk without a result, and the time
        #: since which this rank waits for it.
        self._waits: Dict[int, Tuple[Entry, float]] = {}
        self._warn_after = _FIRST_WARNING

    def check(self, ledger: Ledger, lanes: Sequence[Lane], now: float) -> List[Lane]:
        """Return the lanes (connections) whose reducers are silent although they owe results. Raises
        ReductionFailed if this rank has waited too long for a result."""
        before, self._waits = self._waits, {}
        for lane in lanes:
            entry = ledger.oldest_pending(lane.index)
            if entry is not None:
                known, since = before.get(lane.index, (None, now))
                self._waits[lane.index] = (entry, since if known is entry else now)
        waiting = [lane for lane in lanes if lane.index in self._waits]
        self._check_wait(min(waiting, key=self._since, default=None), now)
        return [
            lane
            for lane in waiting
            if lane.running and now - max(self._since(lane), lane.last_frame_time) > _KEEPALIVE_TIMEOUT
        ]

    def _since(self, lane: Lane) -> float:
        return self._waits[lane.index][1]

    def _check_wait(self, longest: Optional[Lane], now: float) -> None:
        waited = 0.0 if longest is None else now - self._since(longest)
        if waited < _FIRST_WARNING:
            self._warn_after = _FIRST_WARNING
        if longest is None:
            return
        entry, _ = self._waits[longest.index]
        reason = longest.status or longest.cause or "it does not respond"
        if longest.running and not longest.status:
            reason = "it sends nothing"
        text = (
            f"operation {entry.work.operation.number}, chunk {entry.chunk} has waited {waited:.0f} s for "
            f"{longest}: {reason}"
        )
        if waited > self._limit:
            raise ReductionFailed(text)
        if waited > self._warn_after:
            self._warn_after *= 3
            self._log(text)

    def check_absence(self, ledger: Ledger, lanes: Sequence[Lane], now: float) -> None:
        """Raise ReductionFailed if a rank has been lost for too long. A worker is lost if all reducers report
        it as missing. If only some reducers report a worker as missing, that worker is slow or partly
        disconnected. A lost worker does not return to its group."""
        if not ledger.open or any(lane.running or lane.accept is None for lane in lanes):
            return
        since = max((lane.connection.greeted for lane in lanes if lane.connection), default=now)
        if now - since > self._absence:
            lane_with_status = next((lane for lane in lanes if lane.status), lanes[0])
            raise ReductionFailed(
                f"a rank is lost: it has had no connection to any reducer for {now - since:.0f} s "
                f"({lane_with_status.complaint()}). Its program has exited or its host is lost. Restart all "
                "ranks together (set restartJobOnWorkerRestart in the job's scheduling)"
            )


def report_silence(reports: Reports, lane: Lane) -> None:
    """Add a note about a silent reducer to the job's timeline, because it explains why the program waits."""
    # Use the same text on all ranks, because the service shows notes with the same text only once.
    reducer = "{}:{}".format(*lane.address)
    text = f"reducer {reducer} does not respond; the worker reconnects to it"
    reports.add_note(f"silent {reducer}", text, "WARNING")
