"""A group that has come together, on one rank: hands chunks to the transfer and results to callers, and mends
lanes."""

from __future__ import annotations

import logging
import socket
import struct
import sys
import threading
import time
from typing import Dict, NamedTuple, Optional, Sequence, Tuple, Union

from trainshed_reduction import layout, proof
from trainshed_reduction.client.agreement import Membership
from trainshed_reduction.client.choice import Pace
from trainshed_reduction.client.lanes import Dial, Inbox, Lane, connect_due, earliest
from trainshed_reduction.client.ledger import Ledger, Push, Work
from trainshed_reduction.client.losses import Losses, Patience
from trainshed_reduction.client.operations import QueuedOperation
from trainshed_reduction.client.own_reducer import OwnReducer
from trainshed_reduction.client.port import Lost, Message, ReductionFailed, Result, Transfer
from trainshed_reduction.client.transfer import PythonTransfer
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello, Kind

_QUIET = 60.0
"""Seconds between two lines about broken connections."""
_LOOK = 0.5
"""Seconds between two looks at what does not announce itself."""
_LEAVE = 5.0
"""Seconds for what others may still need to go out."""
_PARTING = 1.0
"""Seconds for a last word."""
_LOG = logging.getLogger(__name__)


class RunningGroup:
    """The group at work, on one rank. Only the communicator's thread uses it."""

    def __init__(
        self,
        membership: Membership,
        *,
        dial: Dial,
        inbox: Inbox,
        lanes: Sequence[Lane],
        weights: Sequence[float],
        beside: Optional[OwnReducer],
    ) -> None:
        """`membership`: with the generation that the group has come together in."""
        settings, log, hello = membership.settings, membership.log, membership.hello
        self._operations = membership.operations
        self._hello = hello
        self._apart = membership.apart
        self._dial = dial
        self._inbox = inbox
        self._lanes = lanes
        self._beside = beside
        self._log = log
        several = len({lane.host for lane in lanes}) > 1
        # One reducer alone may be what that rank cannot reach: then it is given up first.
        absence = settings.absent_limit + (0 if several else settings.lost_after)
        self._patience = Patience(settings.wait_limit, absence, log)
        accepts = [lane.accept for lane in lanes if lane.accept is not None]
        self._settings = settings
        self._max_chunk = min(accept.max_chunk for accept in accepts)
        self._pace = Pace()
        flow = self._flow()
        self.ledger = Ledger(weights, hello.rank, hello.world, flow.chunk)
        self._transfer, self._hurries = _make_transfer(len(lanes), flow.credit, dial)
        self._hurried = False
        self._look_at = 0.0
        self._tell_at = 0.0
        self.counts: Dict[str, Union[int, float]] = dict.fromkeys(
            ("operations", "sent_bytes", "sent_again_bytes", "received_bytes", "lost_connections"),
            0,
        )

    def begin(self) -> None:
        """Use the lanes, and be woken up by what comes from other threads."""
        self._inbox.wake = self._operations.wake = self._transfer.wake
        for lane in self._lanes:
            self._resume(lane)

    def turn(self, losses: Losses) -> None:
        """Until something has happened. Raises ReductionFailed: the group cannot go on."""
        for handed in self._operations.take():
            for lane, frame in self._issue(handed):
                self._transfer.push(lane, frame)
        now = self._move(self._pause())
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._look_after(now, losses)

    def leave(self) -> None:
        """In good order, if nothing is under way; what others may still need goes out before."""
        if self._operations.is_native:
            return
        if self.ledger.open:
            number = self.ledger.open[0].operation.number
            self.give_up("it left the group before operation {} was done".format(number))
            return
        deadline = self._move(0.0) + _LEAVE
        while (self._transfer.unsent() or self._is_needed()) and time.monotonic() < deadline:
            self._move(0.05)
        self._part(proof.frame(Kind.BYE))

    def give_up(self, reason: str) -> None:
        """Tell the other ranks, if they can be told, that this one does not go on."""
        self._part(proof.text_frame(Kind.ERROR, reason))

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

    def end(self) -> None:
        """No memory of a caller is touched after this. May be called again."""
        self._detach()
        self._hurry(False)

    def close(self) -> None:
        """Give the transfer back; nothing else may be called then."""
        self.end()
        self._inbox.wake = self._operations.wake = _nobody
        self._transfer.close()

    def metrics(self) -> "Dict[str, Union[int, float]]":
        """What was counted so far."""
        return dict(
            self.counts,
            retained_bytes=self.ledger.retained,
            wait_seconds=round(self._patience.waited, 1),
            native_operations=self._operations.natively,
        )

    # ---- operations

    def _issue(self, handed: QueuedOperation) -> "Sequence[Push]":
        self.counts["sent_bytes"] += len(handed.view)
        self._hurry(True)
        view, dtype, reduction, operation, pace = handed
        largest = 0
        if pace is not None and pace != self._pace:
            self._pace = pace
            largest, credit = self._flow()
            self._transfer.set_credit(credit)
        return self.ledger.issue(view, dtype, reduction, operation, largest)

    def _flow(self) -> "Flow":
        """Of the pace. How long the way is this rank alone knows, and alone has to."""
        delays = [
            round_trip(lane.connection)
            for lane in self._lanes
            if lane.connection is not None and lane.owner is None
        ]
        return flow_for(
            self._settings,
            len(self._lanes),
            self._max_chunk,
            pace=self._pace,
            delay=max(delays, default=0.0),
        )

    def _handle(self, events: "Sequence[object]") -> None:
        now = time.monotonic()
        for event in events:
            if isinstance(event, Result):
                lane = self._lanes[event.lane]
                lane.seen, lane.status = now, ""
                work = self.ledger.arrived(event.lane, event.position)
                if work is not None:
                    self._finish(work)
            elif isinstance(event, Message):
                self._hear(self._lanes[event.lane], event, now)
            elif isinstance(event, Lost):
                self._lose(self._lanes[event.lane], event.cause)

    def _finish(self, work: Work) -> None:
        for lane in self._lanes:
            if lane.running:
                self.ledger.acknowledge(lane.index, self._transfer.acknowledged[lane.index])
        self.ledger.release(work)
        self.counts["operations"] += 1
        self.counts["received_bytes"] += work.total * work.dtype.itemsize
        if not self.ledger.open:
            self._hurry(False)
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
        is_passed = not self.ledger.open and self.ledger.ordinal >= ordinal
        own = self._apart.text(ordinal, is_passed=is_passed) if self._apart is not None else ""
        if own:
            raise ReductionFailed(
                "operation {}: {} at the reducers, rank {} has {} in its native backend, where it waits "
                "for them: every "
                "rank must issue the same all-reduces, of the same size and type, in the same order".format(
                    ordinal, others, self._hello.rank, own
                )
            )

    def _hurry(self, on: bool) -> None:
        if self._hurries and on != self._hurried:
            self._hurried = on
            (HURRY.begin if on else HURRY.end)()

    # ---- lanes

    def _move(self, seconds: float) -> float:
        """What has come from reducers and attempts, waiting so long for it; the time."""
        self._handle(self._transfer.run(seconds))
        for lane in self._inbox.take():
            if lane.start is not None:
                self._resume(lane)
        now = time.monotonic()
        connect_due(self._lanes, self._dial, self._inbox, self._hello_of, now)
        return now

    def _is_needed(self) -> bool:
        """Whether a reducer that is being started again may want results that only this rank has. Not where
        the reducer is back and says that it waits for others: they have left."""
        return any(
            not (lane.running or lane.dropped or lane.status) and self.ledger.keeps(lane.index)
            for lane in self._lanes
        )

    def _pause(self) -> float:
        due = earliest(self._lanes)
        until = self._look_at if due is None else min(due, self._look_at)
        return max(0.0, until - time.monotonic())

    def _hello_of(self, lane: Lane) -> Hello:
        return self._hello._replace(received=self.ledger.received(lane.index))

    def _lose(self, lane: Lane, cause: str) -> None:
        self._transfer.detach(lane.index)
        lane.lose(cause)
        self.counts["lost_connections"] += 1
        now = time.monotonic()
        # A reducer that ends takes many lanes with it, and that is not the last time.
        if self.ledger.waits(lane.index) is not None and now >= self._tell_at:
            self._tell_at = now + _QUIET
            self._log("the connection to {} broke ({}); it is made again".format(lane, cause))

    def _resume(self, lane: Lane) -> None:
        connection, start = lane.take_over()
        frames = self.ledger.replay(lane.index, start.position)
        received = self.ledger.received(lane.index)
        if frames is None:
            raise ReductionFailed(
                "{} would begin at position {}, which is none of those that some rank needs; this one has "
                "{}".format(lane, start.position, received)
            )
        if isinstance(self._transfer, PythonTransfer):
            self._transfer.attach_socket(lane.index, connection, start.position, received)
        else:
            self._transfer.attach(lane.index, connection.fileno(), start.position, received)
        for frame in frames:
            self._transfer.push(lane.index, frame)
            self.counts["sent_again_bytes"] += frame.header.nbytes

    def _look_after(self, now: float, losses: Losses) -> None:
        if self._beside is not None:
            self._beside.look_after()
        for lane in self._patience.look(self.ledger, self._lanes, now):
            losses.tell_silence(lane)
            self._lose(lane, "nothing was heard from it for {:.0f} s".format(now - lane.seen))
        if all(lane.running or lane.dropped for lane in self._lanes):
            return
        self._patience.look_for_absent(self.ledger, self._lanes, now)
        lost = losses.found(now)
        if lost or losses.is_called_for():
            self._operations.hold()
            self._detach()
            for work in losses.agree(lost, self._issue):
                self._finish(work)
            self._hello = self._hello._replace(epoch=losses.epoch)
            if any(not lane.dropped for lane in self._lanes):
                self._operations.release()
            else:
                self._operations.go_native()

    def _detach(self) -> None:
        for lane in self._lanes:
            self._transfer.detach(lane.index)
            lane.close()
            lane.seen = time.monotonic()


def _make_transfer(lanes: int, credit: int, dial: Dial) -> "Tuple[Transfer, bool]":
    """And whether it is in Python: then it needs turns of the interpreter. TLS is in Python only."""
    if dial.tls is None:
        try:
            from trainshed_reduction.native import library

            compiled = library.transfer(lanes, credit)
        except (ImportError, OSError) as error:
            _LOG.debug("no compiled transfer: %s", error)
        else:
            if compiled is not None:
                return compiled, False
    return PythonTransfer(lanes, credit), True


def _nobody() -> None:
    """Nobody is to be woken up."""


_ROW = 320 << 10
_ROW_SECONDS = 0.013
_ROWS = 3
_NARROWEST = 4
"""Lanes that a row is divided among at least: with fewer a chunk would be too long in coming back."""
_LEAST = 1 << 20
_LEAST_SECONDS = 0.002
"""For what the hosts take their time with, on links on which that is more than a few rows."""
_MOST = 64 << 20
_AS_TOLD = Pace()


class Flow(NamedTuple):
    """How much a rank has under way: large enough to keep its link busy, small enough that queues stay short.

    A chunk's result comes back when all ranks have sent it, about a row of chunks after the first did, so
    about three rows have to be under way. Everything beyond only stands in queues, where the flows of a
    worker drift apart and the last reducer's becomes the tail. Measured in shaped networks of 100 to 500
    Mbit/s with 4 and 8 workers and as many reducers, in parts of the bound: three rows of 512 KiB 92-97 %;
    rows of 1 MiB 85-90 %; eight rows 89 %; a row and a half 55-75 %. On a quiet machine at 200 Mbit/s with 4
    and 4, 32 MiB: rows of 500 kB 96.6 and 97.2 %, of 325 kB 97.8 %.
    """

    #: Bytes of a chunk, at most.
    chunk: int
    #: Bytes sent and not come back, over all lanes.
    credit: int


def flow_for(
    settings: Settings, lanes: int, max_chunk: int, *, pace: Pace = _AS_TOLD, delay: float = 0.0
) -> Flow:
    """`lanes`: those that get chunks; `max_chunk`: of the reducers; `delay`: seconds that a byte takes
    there and back while nothing else is on its way. What the settings say of chunks and credit goes first;
    what was measured goes before what they say of bandwidth."""
    rate = pace.rate or settings.worker_gbps * 1e9 / 8
    row = max(_ROW, int(rate * _ROW_SECONDS))
    chunk = min(
        settings.chunk, max_chunk, max(layout.SMALLEST_CHUNK, row // max(lanes, _NARROWEST))
    )
    credit = max(_LEAST, _ROWS * lanes * chunk, int(rate * _LEAST_SECONDS)) + int(rate * delay)
    return Flow(chunk, settings.credit or min(_MOST, pace.factor * credit))


_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148
"""In Linux' struct tcp_info: microseconds."""
_NEVER = 10.0


def round_trip(connection: socket.socket) -> float:
    """Seconds to the other side and back at best, as far as the system has seen; 0 = it does not say."""
    try:
        said = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size
        )
        seconds = _MIN_RTT.unpack_from(said, _MIN_RTT_AT)[0] / 1e6
    except (OSError, AttributeError, struct.error):
        return 0.0
    return seconds if seconds < _NEVER else 0.0


_INTERVAL = 2e-4


class ThreadSwitching:
    """Has Python change threads more often while a transfer in Python moves bytes: between `begin` and `end`,
    which may be nested, over all communicators of the process.

    A program that computes in pure Python gives its interpreter away every 5 ms only; a lane would then be
    idle for most of the time (measured: 936 → 325 Mbit/s; 892 with 0.2 ms).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _INTERVAL))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._before)


HURRY = ThreadSwitching()
