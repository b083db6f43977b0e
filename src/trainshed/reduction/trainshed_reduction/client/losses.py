"""Lost reducers: how long a rank waits for results, and when a reducer is lost for good.

The ranks agree which are lost, and on what is dealt anew or left to the native backend.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from trainshed_reduction.client.agreement import Membership, Post
from trainshed_reduction.client.lanes import Address, Lane
from trainshed_reduction.client.ledger import Entry, Ledger, Share, Work
from trainshed_reduction.client.operations import QueuedOperation
from trainshed_reduction.client.port import ReductionFailed

_SILENCE = 10.0
"""Seconds without a frame from a reducer that owes results; it says every second what it waits for."""
_FIRST_COMPLAINT = 10.0


class Patience:
    """Judges how long a rank has waited, and for whom."""

    def __init__(self, limit: float, absence: float, log: "Callable[[str], None]") -> None:
        #: Seconds without a result of a lane, while one is due.
        self._limit = limit
        #: Seconds without a rank, of which no reducer hears.
        self._absence = absence
        self._log = log
        #: By lane: for which chunk's result, and since when.
        self._waits: Dict[int, Tuple[Entry, float]] = {}
        self._complain_after = _FIRST_COMPLAINT
        #: Seconds that the longest wait has lasted so far.
        self.waited = 0.0

    def look(self, ledger: Ledger, lanes: "Sequence[Lane]", now: float) -> List[Lane]:
        """The lanes whose reducers owe something and have fallen silent. Raises ReductionFailed when it is
        too long."""
        before, self._waits = self._waits, {}
        for lane in lanes:
            entry = ledger.waits(lane.index)
            if entry is not None and not lane.dropped:
                known = before.get(lane.index)
                goes_on = known is not None and known[0] is entry
                self._waits[lane.index] = known if known and goes_on else (entry, now)
        waiting = [lane for lane in lanes if lane.index in self._waits]
        self._judge(min(waiting, key=self._since, default=None), now)
        return [
            lane
            for lane in waiting
            if lane.running and now - max(self._since(lane), lane.seen) > _SILENCE
        ]

    def _since(self, lane: Lane) -> float:
        return self._waits[lane.index][1]

    def _judge(self, longest: Optional[Lane], now: float) -> None:
        self.waited = 0.0 if longest is None else now - self._since(longest)
        if longest is None or self.waited < _FIRST_COMPLAINT:
            self._complain_after = _FIRST_COMPLAINT
        if longest is None:
            return
        entry, _ = self._waits[longest.index]
        reason = longest.status or longest.cause or "it does not answer"
        if longest.running and not longest.status:
            reason = "nothing is heard from it"
        text = "operation {}, chunk {} waits {:.0f} s at {}: {}".format(
            entry.work.operation.number, entry.chunk, self.waited, longest, reason
        )
        if self.waited > self._limit:
            raise ReductionFailed(text)
        if self.waited > self._complain_after:
            self._complain_after *= 3
            self._log(text)

    def look_for_absent(self, ledger: Ledger, lanes: "Sequence[Lane]", now: float) -> None:
        """A worker that is gone is missed by all reducers alike, unlike one that is slow, or that cannot
        reach one of them; it does not come back into its group. Raises ReductionFailed when that has lasted
        too long."""
        used = [lane for lane in lanes if not lane.dropped]
        # A worker's own reducer is gone with it, and tells nothing then.
        asked = [lane for lane in used if lane.owner is None or lane.is_greeted]
        if not ledger.open or any(lane.running or not lane.is_greeted for lane in asked):
            return
        since = max((lane.greeted for lane in asked), default=now)
        if now - since > self._absence:
            telling = next((lane for lane in asked if lane.status), asked[0])
            raise ReductionFailed(
                "a rank is gone: no reducer has heard of it for {:.0f} s ({}). Its program has ended or "
                "its host is lost; the other ranks have to begin anew with it (restartJobOnWorkerRestart "
                "in a job's scheduling sees to that)".format(now - since, telling.complaint())
            )


class Losses:
    """Deals with reducers that are lost. Without an agreement, for want of a board, a lost reducer ends the
    group."""

    def __init__(
        self, membership: Membership, ledger: Ledger, lanes: Sequence[Lane], generation: int
    ) -> None:
        self._membership = membership
        self._settings = membership.settings
        self._operations = membership.operations
        self._agreement = membership.agreement
        self._ledger = ledger
        self._lanes = lanes
        self._generation = generation
        #: How often lanes were lost for good.
        self.epoch = 0

    @property
    def generation(self) -> int:
        """Of the epoch: reducers know no other difference."""
        return self._generation + self.epoch

    def found(self, now: float) -> List[Lane]:
        """Those that were without an answer for too long, or that the service has given up. Not workers' own
        while no lane runs: a worker may be gone with its own, and then cannot agree on anything
        (`Patience.look_for_absent`)."""
        given_up = lost_reducers(self._settings.lost_file)
        lost: List[Lane] = []
        for lane in self._lanes:
            is_given_up = lane.address in given_up
            if lane.dropped or lane.is_greeted:
                continue
            if is_given_up:
                lane.cause = "the service has given it up"
            if is_given_up or now - lane.seen > self._settings.lost_seconds:
                lost.append(lane)
        runs = any(lane.running for lane in self._lanes)
        return lost if runs or any(lane.owner is None for lane in lost) else []

    def tell_silence(self, lane: Lane) -> None:
        """In the report alone, where nothing else says why the program stands still. Not of workers' own:
        they are silent with their worker, who may take his time."""
        reports = self._membership.reports
        if reports is None or lane.owner is not None:
            return
        # Nothing that differs between ranks: the service tells what they say alike once for all.
        text = (
            "reducer {}:{} has fallen silent: it is connected to again, and given up if it does not answer "
            "for {:g} s more".format(*lane.address, self._settings.lost_seconds)
        )
        reports.note("silent {}:{}".format(*lane.address), text, "WARNING")

    def is_called_for(self) -> bool:
        """Whether another rank has begun to agree on a loss."""
        return self._agreement is not None and self._agreement.is_called_for(self.generation + 1)

    def agree(
        self, lost: "Sequence[Lane]", issue: "Callable[[QueuedOperation], object]"
    ) -> List[Work]:
        """End the epoch: no lane is in use any more when this is called, and callers wait. What was finished
        on the way. `issue`: enters an operation. Raises ReductionFailed."""
        if self._agreement is None:
            raise ReductionFailed(
                "{} is lost ({}), and without a store the ranks cannot agree to go on without it".format(
                    lost[0], lost[0].cause
                )
            )
        for handed in self._operations.take():
            issue(handed)
        self.epoch += 1
        gone = [lane.index for lane in self._lanes if lane.dropped or lane in lost]
        posts = self._agreement.exchange(
            self.generation,
            Post(tuple(gone), self._ledger.share()),
            self._settings.wait_seconds,
        )
        dropped = {index for post in posts for index in post.lost}
        for lane in self._lanes:
            if lane.index in dropped and not lane.dropped:
                lane.dropped = True
                text = "{} is lost for good ({}): the group goes on without it"
                cause = lane.cause or "other ranks cannot reach it"
                # One note for all threads of a reducer.
                self._membership.tell("lost {}:{}".format(*lane.address), text.format(lane, cause))
        shares = [post.share for post in posts]
        alive = [not lane.dropped for lane in self._lanes]
        if self._ledger.has_weight(alive):
            self._ledger.deal_anew(alive, shares)
            return []
        return self._go_native(shares, issue)

    def _go_native(
        self, shares: List[Share], issue: "Callable[[QueuedOperation], object]"
    ) -> List[Work]:
        native = self._membership.native
        if native is None:
            raise ReductionFailed("all reducers are lost")
        number = max(share.issued for share in shares)
        began = time.monotonic()
        if not self._operations.await_issued(number, self._settings.wait_seconds):
            raise ReductionFailed(
                "all reducers are lost, and this rank did not come to the operation after {} within {:.0f} "
                "s, which other ranks have begun".format(
                    self._ledger.ordinal, time.monotonic() - began
                )
            )
        for handed in self._operations.take():
            issue(handed)
        text = (
            "all reducers are lost: all-reduce is the native backend's after operation {}".format(
                self._ledger.ordinal
            )
        )
        self._membership.tell("native", text)
        pieces = self._ledger.pieces(shares)
        if pieces:
            native.finish(pieces)
        return list(self._ledger.open)


def lost_reducers(path: str) -> "frozenset[Address]":
    """Those that the service has given up, so far as it has said."""
    if not path:
        return frozenset()
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    places = (line.rpartition(":") for line in lines)
    return frozenset((host.strip("[]"), int(port)) for host, _, port in places if port.isdigit())
