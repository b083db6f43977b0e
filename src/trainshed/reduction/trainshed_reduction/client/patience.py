"""How long is waited for results, what is said meanwhile, and when it is too long."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.ledger import Entry, Ledger
from trainshed_reduction.client.port import ReductionFailed

_SILENCE = 10.0
"""Seconds without a frame from a reducer that owes results; it says every second what it waits for."""
_FIRST_COMPLAINT = 10.0


class Patience:
    """`limit`: seconds without a result of a lane, while one is due; `absence`: without a rank, of which no reducer hears."""

    def __init__(self, limit: float, absence: float, log: "Callable[[str], None]") -> None:
        self._limit = limit
        self._absence = absence
        self._log = log
        self._waits: Dict[int, Tuple[Entry, float]] = {}
        self._complain_after = _FIRST_COMPLAINT
        self.waited = 0.0
        """Seconds that the longest wait has lasted so far."""

    def look(self, ledger: Ledger, lanes: "Sequence[Lane]", now: float) -> List[Lane]:
        """The lanes whose reducers owe something and have fallen silent. Raises ReductionFailed when it is too long."""
        silent: List[Lane] = []
        longest: Optional[Tuple[float, Lane, Entry]] = None
        for lane in lanes:
            entry = ledger.waits(lane.index)
            if entry is None or lane.dropped:
                self._waits.pop(lane.index, None)
                continue
            known = self._waits.get(lane.index)
            if known is None or known[0] is not entry:
                known = self._waits[lane.index] = (entry, now)
            waited = now - known[1]
            if longest is None or waited > longest[0]:
                longest = (waited, lane, entry)
            if lane.running and min(waited, now - lane.seen) > _SILENCE:
                silent.append(lane)
        self._judge(longest)
        return silent

    def look_for_absent(self, ledger: Ledger, lanes: "Sequence[Lane]", now: float) -> None:
        """A worker that is gone is missed by all reducers alike, unlike one that is slow, or that cannot reach one of
        them; it does not come back into its group. Raises ReductionFailed when that has lasted too long."""
        used = [lane for lane in lanes if not lane.dropped]
        # A worker's own reducer is gone with it, and tells nothing then.
        asked = [lane for lane in used if lane.owner is None or lane.is_greeted]
        if not ledger.open or any(lane.running or not lane.is_greeted for lane in asked):
            return
        since = max((lane.greeted for lane in asked), default=now)
        if now - since > self._absence:
            raise ReductionFailed(
                "a rank is gone: no reducer has heard of it for {:.0f} s ({}). Its program has ended or its host is lost; "
                "the other ranks have to begin anew with it (restartJobOnWorkerRestart in a job's scheduling sees to that)".format(
                    now - since, _best(asked).complaint()
                )
            )

    def _judge(self, longest: "Optional[Tuple[float, Lane, Entry]]") -> None:
        self.waited = longest[0] if longest else 0.0
        if longest is None or self.waited < _FIRST_COMPLAINT:
            self._complain_after = _FIRST_COMPLAINT
        if longest is None:
            return
        waited, lane, entry = longest
        text = "operation {}, chunk {} waits {:.0f} s at {}: {}".format(
            entry.work.operation.number, entry.chunk, waited, lane, _reason(lane)
        )
        if waited > self._limit:
            raise ReductionFailed(text)
        if waited > self._complain_after:
            self._complain_after *= 3
            self._log(text)


def _best(lanes: "Sequence[Lane]") -> Lane:
    """One that can say who is missing, if there is one."""
    return next((lane for lane in lanes if lane.status), lanes[0])


def _reason(lane: Lane) -> str:
    if lane.status:
        return lane.status
    return "nothing is heard from it" if lane.running else lane.cause or "it does not answer"
