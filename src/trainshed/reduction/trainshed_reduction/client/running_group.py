"""A group that has come together, on one rank: hands chunks to the transfer and results to callers, and mends
lanes."""

from __future__ import annotations

import time
from typing import Dict, Sequence, Tuple, Union

from trainshed_reduction import proof
from trainshed_reduction.client.agreement import Membership
from trainshed_reduction.client.choice import Pace
from trainshed_reduction.client.flow import Flow, flow_for, round_trip
from trainshed_reduction.client.formation import Formation
from trainshed_reduction.client.lanes import Lane, connect_due
from trainshed_reduction.client.ledger import Ledger, Work
from trainshed_reduction.client.losses import Losses, Patience
from trainshed_reduction.client.operations import QueuedOperation
from trainshed_reduction.client.port import Frame, Lost, Message, ReductionFailed, Result
from trainshed_reduction.native.transfer import NativeTransfer
from trainshed_reduction.reports import Metric
from trainshed_reduction.tunnel import Tunnel
from trainshed_reduction.wire import Hello, Kind

_QUIET = 60.0
"""Seconds between two lines about broken connections."""
_LOOK = 0.5
"""Seconds between two looks at what does not announce itself."""
_LEAVE = 5.0
"""Seconds for what others may still need to go out."""
_PARTING = 1.0
"""Seconds for a last word."""


class RunningGroup:
    """The group at work, on one rank. Only the communicator's thread uses it."""

    def __init__(self, membership: Membership, formation: Formation) -> None:
        """`formation`: has come together, and stays the caller's to close."""
        self._settings = settings = membership.settings
        self._operations = membership.operations
        self._hello = hello = formation.hello
        self._apart = membership.apart
        self._log = membership.log
        self._dial = formation.dial
        self._inbox = formation.inbox
        self._lanes = lanes = formation.lanes
        several = len({lane.host for lane in lanes}) > 1
        # One reducer alone may be what that rank cannot reach: then it is given up first.
        absence = settings.absent_seconds + (0 if several else settings.lost_seconds)
        self._patience = Patience(settings.wait_seconds, absence, self._log)
        self._pace = Pace()
        flow = self._flow()
        self._ledger = Ledger(formation.weights, hello.rank, hello.world, flow.chunk)
        self._losses = Losses(membership, self._ledger, lanes, hello.generation)
        self._transfer = NativeTransfer(formation.library, len(lanes), flow.credit)
        self._look_at = 0.0
        self._tell_at = 0.0
        self._counts: Dict[str, Union[int, float]] = dict.fromkeys(
            ("operations", "sent_bytes", "sent_again_bytes", "received_bytes", "lost_connections"),
            0,
        )

    def begin(self) -> None:
        """Use the lanes, and be woken up by what comes from other threads."""
        self._inbox.wake = self._operations.wake = self._transfer.wake
        for lane in self._lanes:
            self._resume(lane)

    def turn(self) -> None:
        """Until something has happened. Raises ReductionFailed: the group cannot go on."""
        for handed in self._operations.take():
            for lane, frame in self._issue(handed):
                self._transfer.push(lane, frame)
        now = self._move(self._look_at)
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._look_after(now)

    def leave(self) -> None:
        """In good order, if nothing is under way; what others may still need goes out before."""
        if self._operations.is_native:
            return
        if self._ledger.open:
            number = self._ledger.open[0].operation.number
            self.give_up("it left the group before operation {} was done".format(number))
            return
        now = self._move(0.0)
        deadline = now + _LEAVE
        while (self._transfer.unsent() or self._is_needed()) and now < deadline:
            now = self._move(now + 0.05)
        self._part(proof.frame(Kind.BYE))

    def give_up(self, reason: str) -> None:
        """Tell the other ranks, if they can be told, that this one does not go on."""
        self._part(proof.text_frame(Kind.ERROR, reason))
        self._detach()

    def _part(self, frame: bytes) -> None:
        """The last frame on every lane; none where it might get into the middle of another."""
        if self._transfer.unsent():
            return
        for lane in self._lanes:
            if lane.running and lane.connection is not None:
                self._transfer.detach(lane.index)
                try:
                    lane.connection.settimeout(_PARTING)
                    lane.connection.sendall(frame)
                except OSError:
                    pass  # It is gone already.
                if isinstance(lane.connection, Tunnel):
                    lane.connection.end()

    def close(self) -> None:
        """Give the transfer back: no memory of a caller is touched after this, and nothing else may be
        called."""
        self._detach()
        self._inbox.wake = self._operations.wake = _nobody
        self._transfer.close()

    def metrics(self) -> Dict[str, Metric]:
        """What was counted so far."""
        return dict(
            self._counts,
            epoch=self._losses.epoch,
            retained_bytes=self._ledger.retained,
            wait_seconds=round(self._patience.waited, 1),
            native_operations=self._operations.natively,
        )

    # ---- operations

    def _issue(self, handed: QueuedOperation) -> "Sequence[Tuple[int, Frame]]":
        self._counts["sent_bytes"] += len(handed.view)
        view, dtype, reduction, operation, pace = handed
        largest = 0
        if pace is not None and pace != self._pace:
            self._pace = pace
            largest, credit = self._flow()
            self._transfer.set_credit(credit)
        return self._ledger.issue(view, dtype, reduction, operation, largest)

    def _flow(self) -> Flow:
        """Of the pace. How long the way is this rank alone knows, and alone has to."""
        delays = [
            round_trip(lane.connection)
            for lane in self._lanes
            if lane.connection is not None and lane.owner is None
        ]
        return flow_for(
            self._settings,
            len(self._lanes),
            pace=self._pace,
            delay=max(delays, default=0.0),
        )

    def _handle(self, events: "Sequence[object]") -> None:
        now = time.monotonic()
        for event in events:
            if isinstance(event, Result):
                lane = self._lanes[event.lane]
                lane.seen, lane.status = now, ""
                work = self._ledger.arrived(event.lane, event.position)
                if work is not None:
                    self._finish(work)
            elif isinstance(event, Message):
                self._hear(self._lanes[event.lane], event, now)
            elif isinstance(event, Lost):
                self._lose(self._lanes[event.lane], event.cause)

    def _finish(self, work: Work) -> None:
        for lane in self._lanes:
            if lane.running:
                self._ledger.acknowledge(lane.index, self._transfer.acknowledged[lane.index])
        self._ledger.release(work)
        self._counts["operations"] += 1
        self._counts["received_bytes"] += work.header.total * work.dtype.itemsize
        work.operation.finish()

    def _hear(self, lane: Lane, message: Message, now: float) -> None:
        kind, text = message.header.kind, message.payload.decode(errors="replace")
        if kind is Kind.STATUS and message.header.ordinal:
            lane.seen = now
            self._answer(message.header.ordinal, text)
        elif kind is Kind.STATUS:
            lane.seen, lane.status = now, text
        elif kind is Kind.ERROR:
            raise ReductionFailed("{}: {}".format(lane, text))
        else:
            self._lose(lane, "a {} frame came, which is not due".format(kind.name))

    def _answer(self, ordinal: int, others: str) -> None:
        """The others wait for this rank with that operation. Not a sign of anything wrong, for it may only be
        slow; but if it has given the very same one, or one too many before, to its native backend, it never
        comes. Raises ReductionFailed then."""
        is_passed = not self._ledger.open and self._ledger.ordinal >= ordinal
        own = self._apart.text(ordinal, is_passed=is_passed) if self._apart is not None else ""
        if own:
            raise ReductionFailed(
                "operation {}: {} at the reducers, rank {} has {} in its native backend, where it waits "
                "for them: every "
                "rank must issue the same all-reduces, of the same size and type, in the same order".format(
                    ordinal, others, self._hello.rank, own
                )
            )

    # ---- lanes

    def _move(self, until: float) -> float:
        """What has come from reducers and attempts, waiting until then for it; the time."""
        due = connect_due(self._lanes, self._dial, self._inbox, self._hello_of)
        self._handle(self._transfer.run(max(0.0, min(due, until) - time.monotonic())))
        for lane in self._inbox.take():
            if lane.start is not None:
                self._resume(lane)
        return time.monotonic()

    def _is_needed(self) -> bool:
        """Whether a reducer that is being started again may want results that only this rank has. Not where
        the reducer is back and says that it waits for others: they have left."""
        return any(
            not (lane.running or lane.dropped or lane.status) and self._ledger.keeps(lane.index)
            for lane in self._lanes
        )

    def _hello_of(self, lane: Lane) -> Hello:
        return self._hello._replace(received=self._ledger.received(lane.index))

    def _lose(self, lane: Lane, cause: str) -> None:
        self._transfer.detach(lane.index)
        lane.lose(cause)
        self._counts["lost_connections"] += 1
        now = time.monotonic()
        # A reducer that ends takes many lanes with it, and that is not the last time.
        if self._ledger.waits(lane.index) is not None and now >= self._tell_at:
            self._tell_at = now + _QUIET
            self._log("the connection to {} broke ({}); it is made again".format(lane, cause))

    def _resume(self, lane: Lane) -> None:
        connection, start = lane.take_over()
        frames = self._ledger.replay(lane.index, start.position)
        received = self._ledger.received(lane.index)
        if frames is None:
            raise ReductionFailed(
                "{} would begin at position {}, which is none of those that some rank needs; this one has "
                "{}".format(lane, start.position, received)
            )
        self._transfer.attach(lane.index, connection, start.position, received)
        for frame in frames:
            self._transfer.push(lane.index, frame)
            self._counts["sent_again_bytes"] += frame.header.nbytes

    def _look_after(self, now: float) -> None:
        losses = self._losses
        for lane in self._patience.look(self._ledger, self._lanes, now):
            losses.tell_silence(lane)
            self._lose(lane, "nothing was heard from it for {:.0f} s".format(now - lane.seen))
        if all(lane.running or lane.dropped for lane in self._lanes):
            return
        self._patience.look_for_absent(self._ledger, self._lanes, now)
        lost = losses.found(now)
        if lost or losses.is_called_for():
            self._operations.hold()
            self._detach()
            for work in losses.agree(lost, self._issue):
                self._finish(work)
            self._hello = self._hello._replace(generation=losses.generation)
            if any(not lane.dropped for lane in self._lanes):
                self._operations.release()
            else:
                self._operations.go_native()

    def _detach(self) -> None:
        for lane in self._lanes:
            self._transfer.detach(lane.index)
            lane.close()
            lane.seen = time.monotonic()


def _nobody() -> None:
    """Nobody is to be woken up."""
