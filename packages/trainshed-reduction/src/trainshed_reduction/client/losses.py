"""Detection of losses: silent reducers and lost ranks."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.ledger import Entry, Ledger
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.process import Reports

_KEEPALIVE_TIMEOUT = 10.0
"""Maximum seconds between frames of a reducer with outstanding results. It sends its status every second."""
_FIRST_COMPLAINT = 10.0


class LossDetector:
    """Detects silent reducers and lost ranks by their waiting times."""

    def __init__(self, limit: float, absence: float, log: Callable[[str], None]) -> None:
        #: Seconds without a result of a lane, while one is due.
        self._limit = limit
        #: Seconds without a rank that no reducer is connected to.
        self._absence = absence
        self._log = log
        #: By lane: the next chunk without a result, and the start of the wait.
        self._waits: Dict[int, Tuple[Entry, float]] = {}
        self._complain_after = _FIRST_COMPLAINT

    def look(self, ledger: Ledger, lanes: Sequence[Lane], now: float) -> List[Lane]:
        """Return the lanes of silent reducers with outstanding results. Raises ReductionFailed after the time
        limit of a wait."""
        before, self._waits = self._waits, {}
        for lane in lanes:
            entry = ledger.waits(lane.index)
            if entry is not None:
                known, since = before.get(lane.index, (None, now))
                self._waits[lane.index] = (entry, since if known is entry else now)
        waiting = [lane for lane in lanes if lane.index in self._waits]
        self._judge(min(waiting, key=self._since, default=None), now)
        return [
            lane
            for lane in waiting
            if lane.running and now - max(self._since(lane), lane.seen) > _KEEPALIVE_TIMEOUT
        ]

    def _since(self, lane: Lane) -> float:
        return self._waits[lane.index][1]

    def _judge(self, longest: Optional[Lane], now: float) -> None:
        waited = 0.0 if longest is None else now - self._since(longest)
        if waited < _FIRST_COMPLAINT:
            self._complain_after = _FIRST_COMPLAINT
        if longest is None:
            return
        entry, _ = self._waits[longest.index]
        reason = longest.status or longest.cause or "it does not answer"
        if longest.running and not longest.status:
            reason = "nothing is heard from it"
        text = (
            f"operation {entry.work.operation.number}, chunk {entry.chunk} waits {waited:.0f} s at "
            f"{longest}: {reason}"
        )
        if waited > self._limit:
            raise ReductionFailed(text)
        if waited > self._complain_after:
            self._complain_after *= 3
            self._log(text)

    def look_for_absent(self, ledger: Ledger, lanes: Sequence[Lane], now: float) -> None:
        """Raise ReductionFailed after a rank's absence beyond the limit. All reducers report a lost worker as
        missing, in contrast to a slow or partly disconnected worker. A lost worker does not return to its
        group."""
        if not ledger.open or any(lane.running or lane.accept is None for lane in lanes):
            return
        since = max((lane.connection.greeted for lane in lanes if lane.connection), default=now)
        if now - since > self._absence:
            telling = next((lane for lane in lanes if lane.status), lanes[0])
            raise ReductionFailed(
                f"a rank is gone: no reducer has heard of it for {now - since:.0f} s "
                f"({telling.complaint()}). Its program has ended or its host is lost; the other ranks have "
                "to begin anew with it (restartJobOnWorkerRestart in a job's scheduling sees to that)"
            )


def tell_silence(reports: Reports, lane: Lane) -> None:
    """Report a silent reducer, because nothing else shows why the program waits."""
    # The text is the same on all ranks, because the service shows equal notes only once.
    reducer = "{}:{}".format(*lane.address)
    text = f"reducer {reducer} has fallen silent: it is connected to again"
    reports.note(f"silent {reducer}", text, "WARNING")
