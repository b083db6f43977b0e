"""A rank's membership of its group: how the group forms, before anything is summed, and what the ranks tell
each other over its board: the generation, and what to do when reducers are lost."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, TypeVar

from trainshed_reduction import layout
from trainshed_reduction.client.lanes import Dial, Lane, connect_due
from trainshed_reduction.client.ledger import Share
from trainshed_reduction.client.operations import OperationQueue
from trainshed_reduction.client.port import Board, Native, ReductionFailed
from trainshed_reduction.native import library
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello, Start

_SLICE = 0.5
"""Seconds after which a rank that waits checks whether it still should."""
_LOG = logging.getLogger(__name__)


class Agreement:
    """One rank's side of what the ranks agree over the group's board."""

    def __init__(
        self, board: Board, prefix: str, rank: int, world: int, closing: Callable[[], bool]
    ) -> None:
        self._board = board
        #: The prefix of the group's keys.
        self._prefix = prefix
        self._rank = rank
        self._world = world
        #: Whether the group is being closed, so that waiting is of no use.
        self._closing = closing

    def begin(self, attempt: int, seconds: float) -> int:
        """Return the generation, which rank 0 decides. Raises ReductionFailed: it has not in time."""
        if self._rank == 0:
            self._post("generation", new_generation(attempt))
        complaint = f"rank 0 has not begun this group within {seconds:g} s"
        return self._read("generation", time.monotonic() + seconds, complaint)

    def is_called_for(self, generation: int) -> bool:
        """Whether some rank wants to begin this generation; False if the board cannot be read, which is no
        reason to fail for a rank that may need nothing of it."""
        key = f"{self._prefix}/{generation:x}/called"
        try:
            return self._board.read(key, 0) is not None
        except Exception as error:
            # A board may be any store, and raise anything.
            _LOG.debug("the ranks' board cannot be read: %s", error)
            return False

    def exchange(self, generation: int, own: Share, seconds: float) -> List[Share]:
        """Exchange the shares as of this generation's beginning; return all, by rank. Raises ReductionFailed,
        which names a rank that has not answered."""
        key = f"{generation:x}"
        self._post(key + "/called", self._world)
        complaint = (
            "a reducer was lost, and rank {} has not said within {:g} s what it has received"
        )
        return [Share(*share) for share in self._all(key, own, seconds, complaint)]

    def _all(self, key: str, own: object, seconds: float, complaint: str) -> List[Any]:
        """Post this rank's value, and return all ranks' values, by rank. Raises ReductionFailed."""
        self._post(f"{key}/{self._rank}", own)
        deadline = time.monotonic() + seconds
        return [
            self._read(f"{key}/{rank}", deadline, complaint.format(rank, seconds))
            for rank in range(self._world)
        ]

    def _post(self, key: str, value: object) -> None:
        try:
            self._board.post(f"{self._prefix}/{key}", json.dumps(value).encode())
        except Exception as error:
            # As in `is_called_for`, and below as well.
            raise _unusable(error) from error

    def _read(self, key: str, deadline: float, complaint: str) -> Any:
        """Read a key, in slices of time, so that a group can be closed meanwhile. Raises ReductionFailed,
        with the complaint if nobody has written it in time."""
        while True:
            left = deadline - time.monotonic()
            try:
                value = self._board.read(f"{self._prefix}/{key}", max(0.0, min(_SLICE, left)))
            except Exception as error:
                raise _unusable(error) from error
            if value is not None:
                return json.loads(value)
            if left <= 0 or self._closing():
                raise ReductionFailed(complaint)


def new_generation(attempt: int) -> int:
    """Return a generation greater than all of earlier attempts, and of earlier groups of this one."""
    return (attempt << 48) | int(time.time() * 1000) & (2**48 - 1)


def _unusable(error: Exception) -> ReductionFailed:
    return ReductionFailed(
        f"the ranks cannot agree, for the store that they meet at fails: {error!r}"
    )


class Membership(NamedTuple):
    """What all parts of a rank's side share, from the first connection to the last."""

    settings: Settings
    operations: OperationQueue
    #: The rank and its group, without a generation.
    hello: Hello
    #: None: the group has no board. Then a reducer that is lost for good ends it.
    agreement: Optional[Agreement]
    #: How to finish when the last reducer is lost; None: the group cannot. `finish` is called in the
    #: communicator's thread, and no `issue` returns until it has.
    native: Optional[Native]
    #: None: the service reads none.
    reports: Optional[Reports]
    #: Logs a line.
    log: Callable[[str], None]

    def tell(self, note: str, text: str) -> None:
        """Put a warning into the report, or into the log where the service reads no report."""
        if self.reports is None or not self.reports.note(note, text, "WARNING"):
            self.log(text)


_LONGEST_WAIT = 0.5
_Found = TypeVar("_Found")


class Formation:
    """Forms a group. What it has started is there until `close`, whether or not that succeeds."""

    def __init__(self, membership: Membership) -> None:
        """Raises ReductionFailed: the C library is missing, or the settings' authority cannot be used."""
        native = library.load()
        if native is None:
            raise ReductionFailed("reducers need the package's part in C: " + library.reason())
        self.library = native
        self._membership = membership
        self._settings = settings = membership.settings
        #: Has the generation as soon as that is known.
        self.hello = membership.hello
        self._news = threading.Event()
        self.dial = Dial(settings, self._news.set)
        self._deadline = time.monotonic() + settings.start_seconds
        self.lanes: List[Lane] = []
        #: The weights of lanes, in the order of `lanes`.
        self.weights: List[float] = []

    def form(self) -> None:
        """Form the group; blocks. Raises ReductionFailed, which names what is missing."""
        generation = self._begin()
        firsts = [Lane(host, address) for host, address in enumerate(self._settings.reducers)]
        self.lanes = list(firsts)
        # Where only rank 0 knows the generation, START on the first reducer's lane tells it.
        generation = generation or self._await(firsts[:1], _start)[0].generation
        self.hello = self.hello._replace(generation=generation)
        accepted = self._await(firsts, lambda lane: lane.accept)
        for first, accept in zip(firsts, accepted):
            others = range(1, accept.threads)
            self.lanes += [Lane(first.host, first.address, thread) for thread in others]
        self.lanes.sort(key=lambda lane: (lane.host, lane.thread))
        self.weights = [1 / accepted[lane.host].threads for lane in self.lanes]
        self._await(self.lanes, _start)
        for index, lane in enumerate(self.lanes):
            lane.index = index

    def describe(self) -> str:
        """Return one line: how many reducers, which mode, and what that can gain. After `form`."""
        reducers = len({lane.host for lane in self.lanes})
        return describe(self._settings, self.hello.world, reducers, len(self.lanes))

    def close(self) -> None:
        """Close the lanes."""
        for lane in self.lanes:
            lane.close()

    def _begin(self) -> int:
        """Return the generation (0: only rank 0 knows it)."""
        settings, agreement = self._settings, self._membership.agreement
        if agreement is None:
            return 0 if self.hello.rank else new_generation(settings.attempt)
        return agreement.begin(settings.attempt, settings.start_seconds)

    def _await(
        self, lanes: Sequence[Lane], wanted: Callable[[Lane], Optional[_Found]]
    ) -> List[_Found]:
        """Connect these lanes, and return what is wanted of each once all have it. Raises ReductionFailed."""
        while True:
            self._news.clear()
            now = time.monotonic()
            due = connect_due(lanes, self.dial, lambda _: self.hello, now)
            results = [wanted(lane) for lane in lanes]
            missing = [lane for lane, result in zip(lanes, results) if result is None]
            if not missing:
                return [result for result in results if result is not None]
            if self._membership.operations.closing:
                raise ReductionFailed("the group was closed while it was being made")
            if now >= self._deadline:
                complaints = "; ".join(lane.complaint() for lane in missing[:8])
                raise ReductionFailed(
                    f"not all reducers and ranks are there after {self._settings.start_seconds:g} s: "
                    f"{complaints}"
                )
            self._news.wait(max(0.0, min(self._deadline, now + _LONGEST_WAIT, due) - now))


def _start(lane: Lane) -> Optional[Start]:
    return lane.start


def describe(settings: Settings, world: int, reducers: int, threads: int) -> str:
    """Describe a group in one line. `reducers`: replicas of the pool, with `threads` in all."""
    # Where nothing is known of the links, reducers are assumed to have the bandwidth that they need.
    speed = settings.speed or world / reducers
    return (
        f"{_count(reducers, 'reducer')} ({_count(threads, 'thread')}); at most "
        f"{layout.bounds(world, reducers, speed).limit:.2f} times the ring's speed"
    )


def _count(number: int, singular: str) -> str:
    return f"{number} {singular}{'' if number == 1 else 's'}"
