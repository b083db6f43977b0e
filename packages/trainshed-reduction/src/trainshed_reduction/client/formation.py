"""Forms a group, before anything is summed: agrees on a generation, finds the reducers' threads, starts
workers' own reducers, and connects all lanes."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from typing import Callable, List, Optional, Sequence, Tuple, TypeVar

from trainshed_reduction import layout, proof, variables
from trainshed_reduction.client.agreement import Membership, OwnReducerAddress, new_generation
from trainshed_reduction.client.lanes import Address, Dial, Lane, connect_due
from trainshed_reduction.client.losses import lost_reducers
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.native import library
from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.server import Server
from trainshed_reduction.settings import Settings
from trainshed_reduction.sockets import listen
from trainshed_reduction.wire import Start

# A worker's own reducer, where the reducers' bandwidth is too small (hybrid): a thread of the worker's
# process, which runs in C nearly all of the time and ends with the worker.

_LOG = logging.getLogger(__name__)


class OwnReducer:
    """A reducer that serves from its making until `close`."""

    def __init__(self, host: str, settings: Settings, library: Library) -> None:
        """`host`: the worker's own address on its connections to reducers. Raises OSError."""
        self._listener = listen((host, 0))
        self.address: Address = (host, self._listener.getsockname()[1])
        self._server = Server(
            self._listener,
            settings.token,
            library=library,
            outlet=lambda what, value: _LOG.debug("own reducer: %s %s", what, value),
            tls=_shown(settings) if settings.is_secured else None,
        )
        self._thread = threading.Thread(
            target=self._server.run, name="reduction-own-reducer", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        self._thread.join()
        self._listener.close()


def nothing_to_show(settings: Settings, tls: Optional[ssl.SSLContext]) -> str:
    """Return why other workers, who trust the same authority as this one, could not trust this worker's own
    reducer; "" if they could, or without TLS."""
    if tls is None:
        return ""
    if not settings.cert_file and not settings.cert:
        return f"no certificate for a reducer of its own ({variables.CERT_FILE})"
    try:
        fault = proof.distrust(tls, _shown(settings))
    except OSError as error:
        fault = str(error)
    where = settings.cert_file or variables.CERT
    return fault and f"a certificate in {where} that cannot be used: {fault}"


def _shown(settings: Settings) -> ssl.SSLContext:
    """Return the own reducer's TLS context. Raises OSError."""
    return proof.reducer_tls(
        settings.cert_file, settings.key_file, cert=settings.cert, key=settings.key
    )


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
        #: This worker's own reducer, if it has one.
        self.beside: Optional[OwnReducer] = None
        self._shares = layout.Shares(0.0, 0.0)
        #: Why workers do not reduce beside the reducers though it would pay.
        self._lack = ""

    def form(self) -> None:
        """Form the group; blocks. Raises ReductionFailed, which names what is missing."""
        generation, lost = self._begin()
        reducers = enumerate(self._settings.reducers)
        hosts = [address for index, address in reducers if index not in lost]
        if not hosts:
            raise ReductionFailed("the service has given up all reducers of this job")
        firsts = [Lane(host, address) for host, address in enumerate(hosts)]
        self.lanes = list(firsts)
        # Where only rank 0 knows the generation, START on the first reducer's lane tells it.
        generation = generation or self._await(firsts[:1], _start)[0].generation
        self.hello = self.hello._replace(generation=generation)
        accepted = self._await(firsts, lambda lane: lane.accept)
        for first, accept in zip(firsts, accepted):
            others = range(1, accept.threads)
            self.lanes += [Lane(first.host, first.address, thread) for thread in others]
        self.lanes.sort(key=lambda lane: (lane.host, lane.thread))
        shares = self._wanted_shares(len(hosts))
        own = self._start_own(firsts[0]) if shares.is_hybrid else []
        self._shares = shares = shares if own else _pure(len(hosts))
        self.weights = [shares.reducer / accepted[lane.host].threads for lane in self.lanes]
        self.lanes += [Lane(len(hosts) + rank, place, owner=rank) for rank, place in enumerate(own)]
        self.weights += [shares.worker] * len(own)
        self._await(self.lanes, _start)
        for index, lane in enumerate(self.lanes):
            lane.index = index

    def describe(self) -> str:
        """Return one line: how many reducers, which mode, and what that can gain. After `form`."""
        threads = [lane for lane in self.lanes if lane.owner is None]
        reducers = len({lane.host for lane in threads})
        world = self.hello.world
        return describe(
            self._settings, world, reducers, len(threads), self._shares, lack=self._lack
        )

    def close(self) -> None:
        """Close the lanes, and this worker's own reducer."""
        for lane in self.lanes:
            lane.close()
        if self.beside is not None:
            self.beside.close()

    def _begin(self) -> Tuple[int, Sequence[int]]:
        """Return the generation (0: only rank 0 knows it), and the indexes of reducers that are not used."""
        settings, agreement = self._settings, self._membership.agreement
        if agreement is None:
            return (0 if self.hello.rank else new_generation(settings.attempt)), ()
        given_up = lost_reducers(settings.lost_file)
        lost = [index for index, reducer in enumerate(settings.reducers) if reducer in given_up]
        return agreement.begin(settings.attempt, lost, settings.start_seconds)

    def _wanted_shares(self, reducers: int) -> layout.Shares:
        """Return the shares; hybrid only where workers can tell each other where their own reducers are."""
        settings = self._settings
        if settings.mode == "pure" or (settings.mode == "auto" and not settings.speed):
            return _pure(reducers)
        shares = layout.shares(self.hello.world, reducers, settings.speed or 1.0)
        if shares.is_hybrid and self._membership.agreement is None:
            self._lack = "there is no store to meet at"
            return _pure(reducers)
        return shares

    def _start_own(self, first: Lane) -> List[Address]:
        """Return where all ranks' own reducers listen; [] if some rank cannot have one: all do without."""
        assert self._membership.agreement is not None and first.connection is not None
        place = OwnReducerAddress(lack=nothing_to_show(self._settings, self.dial.tls))
        if not place.lack:
            self.beside = OwnReducer(first.connection.own, self._settings, self.library)
            place = OwnReducerAddress(*self.beside.address)
        left = self._deadline - time.monotonic()
        places = self._membership.agreement.places(place, left)
        lacks = [f"rank {rank} has {shown.lack}" for rank, shown in enumerate(places) if shown.lack]
        if not lacks:
            return [(shown.host, shown.port) for shown in places]
        self._lack = lacks[0]
        if self.beside is not None:
            self.beside.close()
            self.beside = None
        return []

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
            given_up = lost_reducers(self._settings.lost_file)
            gone = [lane for lane in missing if lane.address in given_up]
            if gone:  # The ranks have agreed already to use it.
                raise ReductionFailed(f"the service has given up {gone[0]}")
            if now >= self._deadline:
                complaints = "; ".join(lane.complaint() for lane in missing[:8])
                raise ReductionFailed(
                    f"not all reducers and ranks are there after {self._settings.start_seconds:g} s: "
                    f"{complaints}"
                )
            self._news.wait(max(0.0, min(self._deadline, now + _LONGEST_WAIT, due) - now))


def _start(lane: Lane) -> Optional[Start]:
    return lane.start


def describe(
    settings: Settings,
    world: int,
    reducers: int,
    threads: int,
    shares: layout.Shares,
    *,
    lack: str = "",
) -> str:
    """Describe a group in one line. `reducers`: replicas of the pool, with `threads` in all. `lack`: why
    workers do not reduce though it would pay."""
    # Where nothing is known of the links, reducers are assumed to have the bandwidth that they need.
    speed = settings.speed or (1.0 if shares.is_hybrid else world / reducers)
    bounds = layout.bounds(world, reducers, speed)
    mode, limit = "pure", bounds.ring / bounds.pure
    if shares.is_hybrid:
        mode = "hybrid: {:.0%} of every tensor to each reducer, {:.0%} to each worker".format(
            *shares
        )
        limit = bounds.limit
    tls = " over TLS" if settings.is_secured else ""
    text = (
        f"{_count(reducers, 'reducer')} ({_count(threads, 'thread')}), {mode}{tls}; at most {limit:.2f} "
        "times the ring's speed"
    )
    if lack:
        text += f"; workers would reduce as well, but {lack}"
    if world > 2:
        text += (
            f"; reducers alone are faster than the ring from {layout.break_even(world):.2f} times a "
            "worker's bandwidth on"
        )
        if settings.speed:
            text += f", these have {reducers * speed:.2f}"
    return text


def _count(number: int, singular: str) -> str:
    return f"{number} {singular}{'' if number == 1 else 's'}"


def _pure(reducers: int) -> layout.Shares:
    return layout.Shares(1 / reducers, 0.0)
