"""The coming together of a group: a generation, reducers and their threads, workers' own reducers, and all
lanes connected, before anything is summed."""

from __future__ import annotations

import time
from typing import Callable, List, Optional, Sequence

from trainshed_reduction import layout
from trainshed_reduction.client.agreement import (
    GenerationStart,
    Membership,
    OwnReducerAddress,
    new_generation,
)
from trainshed_reduction.client.lanes import Address, Dial, Inbox, Lane, connect_due
from trainshed_reduction.client.losses import lost_reducers
from trainshed_reduction.client.own_reducer import OwnReducer, nothing_to_show
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.native import library
from trainshed_reduction.settings import Settings

_LONGEST_WAIT = 0.5


class Formation:
    """Brings a group together. What it has begun is there whether or not that succeeds, until `close`."""

    def __init__(self, membership: Membership) -> None:
        """Raises ReductionFailed: the part in C is not here, or the settings' certificates cannot be
        used."""
        found = library.load()
        if found is None:
            raise ReductionFailed("reducers need the package's part in C: " + library.reason())
        self.library = found
        self._membership = membership
        self._settings = settings = membership.settings
        #: With the generation, when that is known.
        self.hello = membership.hello
        self.dial = Dial.of(settings)
        self.inbox = Inbox()
        self._deadline = time.monotonic() + settings.start_seconds
        self.lanes: List[Lane] = []
        #: By lane.
        self.weights: List[float] = []
        #: This worker's own reducer, if it has one.
        self.beside: Optional[OwnReducer] = None
        self._shares = layout.Shares(0.0, 0.0)
        #: Why workers do not reduce beside the reducers though it would pay.
        self._lack = ""

    def form(self) -> None:
        """Raises ReductionFailed, which names what is missing."""
        beginning = self._begin()
        hosts = [
            address
            for index, address in enumerate(self._settings.reducers)
            if index not in beginning.lost
        ]
        if not hosts:
            raise ReductionFailed("the service has given up all reducers of this job")
        self.hello = self.hello._replace(generation=beginning.generation)
        firsts = [Lane(host, address) for host, address in enumerate(hosts)]
        self.lanes = list(firsts)
        if not beginning.generation:
            # Rank 0 chose one; the others hear of it where they all meet first.
            self._await(firsts[:1], lambda lane: lane.start is not None)
            start = firsts[0].start
            assert start is not None
            self.hello = self.hello._replace(generation=start.generation)
        self._await(firsts, lambda lane: lane.accept is not None)
        self.lanes = lanes = [each for first in firsts for each in _with_others(first)]
        shares = self._wanted_shares(len(hosts))
        own = self._start_own(firsts[0].own) if shares.is_hybrid else []
        self._shares = shares = shares if own else _pure(len(hosts))
        self.weights = [
            shares.reducer / sum(other.host == lane.host for other in lanes) for lane in lanes
        ]
        lanes += [Lane(len(hosts) + rank, place, owner=rank) for rank, place in enumerate(own)]
        self.weights += [shares.worker] * len(own)
        self._await(lanes, lambda lane: lane.start is not None)
        for index, lane in enumerate(lanes):
            lane.index = index

    def describe(self) -> str:
        """One line: how many reducers, which mode, and what that can gain. After `form`."""
        threads = [lane for lane in self.lanes if lane.owner is None]
        reducers = len({lane.host for lane in threads})
        world = self.hello.world
        return describe(
            self._settings, world, reducers, len(threads), self._shares, lack=self._lack
        )

    def close(self) -> None:
        """End all that was begun, a worker's own reducer too."""
        for lane in self.lanes:
            lane.close()
        if self.beside is not None:
            self.beside.close()

    def _begin(self) -> GenerationStart:
        settings, agreement = self._settings, self._membership.agreement
        given_up = lost_reducers(settings.lost_file)
        lost = [index for index, each in enumerate(settings.reducers) if each in given_up]
        if agreement is not None:
            return agreement.begin(settings.attempt, tuple(lost), settings.start_seconds)
        return GenerationStart(0 if self.hello.rank else new_generation(settings.attempt), ())

    def _wanted_shares(self, reducers: int) -> layout.Shares:
        """Hybrid only where all workers can tell each other where their own reducers are."""
        settings = self._settings
        known = settings.worker_gbps > 0 and settings.reducer_gbps > 0
        if settings.mode == "pure" or (settings.mode == "auto" and not known):
            return _pure(reducers)
        speed = settings.reducer_gbps / settings.worker_gbps if known else 1.0
        shares = layout.shares(self.hello.world, reducers, speed)
        if shares.is_hybrid and self._membership.agreement is None:
            self._lack = "there is no store to meet at"
            return _pure(reducers)
        return shares

    def _start_own(self, own: str) -> List[Address]:
        """Where the ranks' own reducers listen; nothing if some rank cannot have one: then all do without."""
        assert self._membership.agreement is not None
        place = OwnReducerAddress(lack=nothing_to_show(self._settings, self.dial.tls))
        if not place.lack:
            self.beside = OwnReducer(own, self._settings, self.library)
            place = OwnReducerAddress(*self.beside.address)
        left = self._deadline - time.monotonic()
        places = self._membership.agreement.places(place, left)
        lacks = [
            "rank {} has {}".format(rank, each.lack)
            for rank, each in enumerate(places)
            if each.lack
        ]
        if not lacks:
            return [(each.host, each.port) for each in places]
        self._lack = lacks[0]
        if self.beside is not None:
            self.beside.close()
            self.beside = None
        return []

    def _await(self, lanes: "Sequence[Lane]", ready: "Callable[[Lane], bool]") -> None:
        """Connect these and wait until they are ready. Raises ReductionFailed."""
        while not all(ready(lane) for lane in lanes):
            if self._membership.operations.closing:
                raise ReductionFailed("the group was closed while it was being made")
            given_up = lost_reducers(self._settings.lost_file)
            gone = [lane for lane in lanes if lane.address in given_up and not ready(lane)]
            if gone:  # After the group has begun: its ranks have agreed to count on it.
                raise ReductionFailed("the service has given up {}".format(gone[0]))
            now = time.monotonic()
            if now >= self._deadline:
                complaints = [lane.complaint() for lane in lanes if not ready(lane)]
                raise ReductionFailed(
                    "not all reducers and ranks are there after {:g} s: {}".format(
                        self._settings.start_seconds, "; ".join(complaints[:8])
                    )
                )
            due = connect_due(lanes, self.dial, self.inbox, lambda _: self.hello)
            self.inbox.take(max(0.001, min(self._deadline, now + _LONGEST_WAIT, due) - now))


def describe(
    settings: Settings,
    world: int,
    reducers: int,
    threads: int,
    shares: layout.Shares,
    *,
    lack: str = "",
) -> str:
    """`reducers`: replicas of the pool, of `threads` in all. `lack`: why workers do not reduce though it
    would pay."""
    known = settings.worker_gbps > 0 and settings.reducer_gbps > 0
    # Where nothing is known of the links, reducers are taken to have what they need.
    speed = settings.reducer_gbps / settings.worker_gbps if known else world / reducers
    if shares.is_hybrid and not known:
        speed = 1.0
    bounds = layout.bounds(world, reducers, speed)
    mode, limit = "pure", bounds.ring / bounds.pure
    if shares.is_hybrid:
        mode = "hybrid: {:.0%} of every tensor to each reducer, {:.0%} to each worker".format(
            *shares
        )
        limit = bounds.limit
    text = "{} ({}), {}{}; at most {:.2f} times the ring's speed".format(
        _count(reducers, "reducer"),
        _count(threads, "thread"),
        mode,
        " over TLS" if settings.is_secured else "",
        limit,
    )
    if lack:
        text += "; workers would reduce as well, but {}".format(lack)
    if world > 2:
        text += "; reducers alone are faster than the ring from {:.2f} times a worker's bandwidth on".format(
            layout.break_even(world)
        )
        if known:
            text += ", these have {:.2f}".format(reducers * speed)
    return text


def _count(number: int, one: str) -> str:
    return "{} {}{}".format(number, one, "" if number == 1 else "s")


def _pure(reducers: int) -> layout.Shares:
    return layout.Shares(1 / reducers, 0.0)


def _with_others(first: Lane) -> List[Lane]:
    """The lanes to all the threads of a reducer."""
    assert first.accept is not None
    others = range(1, first.accept.threads)
    return [first, *(Lane(first.host, first.address, thread) for thread in others)]
