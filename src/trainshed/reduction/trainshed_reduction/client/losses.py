"""When reducers are lost for good: the ranks agree which, and on what is dealt anew or left to the native backend."""

from __future__ import annotations

import time
from typing import Callable, List, Sequence

from trainshed_reduction.client.agreement import Post
from trainshed_reduction.client.connecting import Address
from trainshed_reduction.client.desk import Handed
from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.ledger import Ledger, Share, Work
from trainshed_reduction.client.membership import Membership
from trainshed_reduction.client.port import ReductionFailed


class Losses:
    """Without an agreement, for want of a board, a reducer that is lost ends the group."""

    def __init__(
        self, membership: Membership, ledger: Ledger, lanes: Sequence[Lane], generation: int
    ) -> None:
        self._membership = membership
        self._settings = membership.settings
        self._desk = membership.desk
        self._agreement = membership.agreement
        self._ledger = ledger
        self._lanes = lanes
        self._generation = generation
        self.epoch = 0

    def found(self, now: float) -> List[Lane]:
        """Those that were without an answer for too long, or that the service has given up. Not workers' own while no lane
        runs: a worker may be gone with its own, and then cannot agree on anything (`Patience.look_for_absent`)."""
        given_up = lost_reducers(self._settings.lost_file)
        lost: List[Lane] = []
        for lane in self._lanes:
            if lane.dropped or lane.is_greeted:
                continue
            if lane.first in given_up:
                lane.cause = "the service has given it up"
                lost.append(lane)
            elif now - lane.seen > self._settings.lost_after:
                lost.append(lane)
        if all(lane.owner is not None for lane in lost) and not any(
            lane.running for lane in self._lanes
        ):
            return []
        return lost

    def tell_silence(self, lane: Lane) -> None:
        """In the report alone, where nothing else says why the program stands still. Not of workers' own: they are silent
        with their worker, who may take his time."""
        reports = self._membership.reports
        if reports is None or lane.owner is not None:
            return
        # Nothing that differs between ranks: the service tells what they say alike once for all.
        text = (
            "reducer {}:{} has fallen silent: it is connected to again, and given up if it does not answer for "
            "{:g} s more".format(*lane.first, self._settings.lost_after)
        )
        reports.note("silent {}:{}".format(*lane.first), text, "WARNING")

    def is_called_for(self) -> bool:
        """Whether another rank has begun to agree on a loss."""
        return self._agreement is not None and self._agreement.is_called_for(
            self._generation, self.epoch + 1
        )

    def agree(self, lost: "Sequence[Lane]", issue: "Callable[[Handed], object]") -> List[Work]:
        """End the epoch: no lane is in use any more when this is called, and callers wait. What was finished on the way.
        `issue`: enters an operation. Raises ReductionFailed."""
        if self._agreement is None:
            raise ReductionFailed(
                "{} is lost ({}), and without a store the ranks cannot agree to go on without it".format(
                    lost[0], lost[0].cause
                )
            )
        for handed in self._desk.take():
            issue(handed)
        self.epoch += 1
        gone = [lane.index for lane in self._lanes if lane.dropped or lane in lost]
        posts = self._agreement.exchange(
            self._generation,
            self.epoch,
            Post(tuple(gone), self._ledger.share()),
            self._settings.wait_limit,
        )
        dropped = {index for post in posts for index in post.lost}
        for lane in self._lanes:
            if lane.index in dropped and not lane.dropped:
                lane.dropped = True
                self._tell(lane)
        shares = [post.share for post in posts]
        alive = [not lane.dropped for lane in self._lanes]
        if self._ledger.has_weight(alive):
            self._ledger.deal_anew(alive, shares)
            return []
        return self._go_native(shares, issue)

    def _tell(self, lane: Lane) -> None:
        text = "{} is lost for good ({}): the group goes on without it".format(
            lane, lane.cause or "other ranks cannot reach it"
        )
        # One note for all processes of a reducer.
        self._say("lost {}:{}".format(*lane.first), text)

    def _say(self, note: str, text: str) -> None:
        """In the report; in the log where nobody reads that."""
        reports = self._membership.reports
        if reports is None or not reports.note(note, text, "WARNING"):
            self._membership.log(text)

    def _go_native(self, shares: List[Share], issue: "Callable[[Handed], object]") -> List[Work]:
        native = self._membership.native
        if native is None:
            raise ReductionFailed("all reducers are lost")
        number = max(share.issued for share in shares)
        began = time.monotonic()
        if not self._desk.await_issued(number, self._settings.wait_limit):
            raise ReductionFailed(
                "all reducers are lost, and this rank did not come to the operation after {} within {:.0f} s, which "
                "other ranks have begun".format(self._ledger.ordinal, time.monotonic() - began)
            )
        for handed in self._desk.take():
            issue(handed)
        text = (
            "all reducers are lost: all-reduce is the native backend's after operation {}".format(
                self._ledger.ordinal
            )
        )
        self._say("native", text)
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
