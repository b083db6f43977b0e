"""Sums a vector over all replicas that train.

Owns who is connected to whom. Knows nothing of networks, epochs or buckets.

The replicas form a star. Every worker keeps one connection to the primary; for each sum it sends
its vector and receives the total. The primary adds in the order of the ranks, so that the total
is the same to the last bit in every run and on every replica.

Replicas start when they are ready, in any order, and the service may put another in the place of
one that it lost. So every connection may break: that is `PeerLostError`, and the answer to it is to
meet again and to go on from the last state that the primary has.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np

from trainshed_demo.cluster import Address
from trainshed_demo.frames import SILENCE_SECONDS, Channel, Kind, PeerLostError
from trainshed_demo.model import Vector

HELLO_SECONDS = 5.0
"""How long a peer that has connected may take to say who it is."""


class GatherError(Exception):
    """The replicas did not find each other, or do not fit together. Final."""


class Group(Protocol):
    """The replicas that train together, seen from one of them."""

    @property
    def rank(self) -> int:
        """This replica's place, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many replicas there are."""
        ...

    @property
    def bytes_moved(self) -> int:
        """What this replica has sent and received since the group was formed."""
        ...

    def sum(self, vector: Vector) -> Vector:
        """The sum of the vectors that all replicas give to their n-th call. Blocks until all did.

        Raises:
            PeerLostError: The group is broken and must be formed anew.
        """
        ...


@dataclass(slots=True)
class Leader:
    """The group as the primary has it. With no channels the primary is alone."""

    channels: list[Channel] = field(default_factory=list[Channel])
    """One per worker, in the order of the ranks."""
    rank: int = 0
    _count: int = 0

    @property
    def size(self) -> int:
        return 1 + len(self.channels)

    @property
    def bytes_moved(self) -> int:
        return sum(channel.bytes_moved for channel in self.channels)

    def sum(self, vector: Vector) -> Vector:
        self._count += 1
        total = vector.copy()
        for channel in self.channels:
            part = channel.expect(Kind.SUM, self._count).body
            if part.shape != total.shape:
                raise PeerLostError(f"{channel.peer} sent {part.size} values, not {total.size}")
            total += part
        self.tell(Kind.SUM, self._count, total)
        return total

    def tell(self, kind: Kind, number: int = 0, body: Vector | None = None) -> None:
        """Sends one frame to every worker. Raises `PeerLostError`."""
        for channel in self.channels:
            channel.send(kind, number, body)

    def close(self) -> None:
        """Closes every connection, by which the workers know that they must join again."""
        for channel in self.channels:
            channel.close()


@dataclass(slots=True)
class Follower:
    """The group as a worker has it."""

    channel: Channel
    rank: int
    size: int
    _count: int = 0

    @property
    def bytes_moved(self) -> int:
        return self.channel.bytes_moved

    def sum(self, vector: Vector) -> Vector:
        self._count += 1
        self.channel.send(Kind.SUM, self._count, vector)
        return self.channel.expect(Kind.SUM, self._count).body


class Meeting:
    """The primary's side of finding each other: listens, and gathers the workers.

    It goes on listening while the job runs, so that a worker that was replaced can come back.
    """

    def __init__(self, address: Address | None, size: int, settings: Vector) -> None:
        """Listens.

        Args:
            address: The primary's own; `None` when it is alone, and then nothing is opened.
            size: How many replicas train.
            settings: What every replica must agree on.

        Raises:
            GatherError: The address cannot be listened on.
        """
        self._size = size
        self._settings = settings
        self._socket = None if address is None else _listen(address)

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def gather(self, timeout: float, say: Callable[[str], None]) -> Leader:
        """Waits until every worker has joined.

        Args:
            timeout: In seconds, for all of them together.
            say: Is told who joined.

        Raises:
            GatherError: Not all came in time, or one was started with other settings.
        """
        joined: dict[int, Channel] = {}
        deadline = time.monotonic() + timeout
        while self._socket is not None and len(joined) < self._size - 1:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, (host, *_) = self._socket.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, self._size)) - joined.keys())
                raise GatherError(
                    f"workers {missing} did not join within {timeout:.0f} s. Look into their logs:"
                    " they failed, or they cannot reach the primary's address."
                ) from error
            channel = Channel(connection, f"the peer at {host}")
            try:
                rank = self._welcome(channel)
            except PeerLostError as error:
                say(f"ignored a connection: {error}")
                channel.close()
                continue
            channel.peer = f"worker {rank}"
            if rank in joined:
                # The older connection belongs to an incarnation that is gone.
                joined[rank].close()
            joined[rank] = channel
            say(f"worker {rank} joined from {host} ({len(joined)} of {self._size - 1})")
        return Leader([joined[rank] for rank in sorted(joined)])

    def _welcome(self, channel: Channel) -> int:
        channel.allow_silence(HELLO_SECONDS)
        frame = channel.expect(Kind.HELLO)
        channel.allow_silence(SILENCE_SECONDS)
        if not 0 < frame.number < self._size:
            raise PeerLostError(f"{channel.peer} says it is worker {frame.number}; there is none")
        if not np.array_equal(frame.body, self._settings):
            raise GatherError(
                f"worker {frame.number} was started with other arguments than the primary."
                " Give all worker pools the same ones."
            )
        return frame.number


def join(primary: Address, rank: int, size: int, settings: Vector, timeout: float) -> Follower:
    """The worker's side of finding each other: connects to the primary and introduces itself.

    The primary may start later than this replica, and its name may not resolve until it does, so
    every failure is tried again until the time is over.

    Raises:
        GatherError: The primary could not be reached in time.
    """
    deadline = time.monotonic() + timeout
    pause = 0.05
    while True:
        try:
            connection = socket.create_connection(primary, timeout=HELLO_SECONDS)
            channel = Channel(connection, "the primary")
            channel.send(Kind.HELLO, rank, settings)
            return Follower(channel, rank, size)
        except (OSError, PeerLostError) as error:
            if time.monotonic() + pause > deadline:
                raise GatherError(
                    f"the primary at {primary} was not reached within {timeout:.0f} s: {error}."
                    " Look into its log: it failed, or this host cannot reach it."
                ) from error
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise GatherError(
            f"cannot listen on {address}: {error}. The cluster names this address as this"
            " replica's own: it must resolve here, and nothing else may use the port."
        ) from error
