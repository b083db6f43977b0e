"""The communicator's thread from beginning to end: the group comes together, runs, and ends or fails.

It comes together by a generation, reducers and their processes, workers' own reducers, and all lanes
connected, before anything is summed.
"""

from __future__ import annotations

import logging
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from trainshed_reduction import layout
from trainshed_reduction.client.agreement import (
    GenerationStart,
    Membership,
    OwnReducerAddress,
    new_generation,
)
from trainshed_reduction.client.connection_attempts import Address, Target, nothing_to_show, trust
from trainshed_reduction.client.lanes import Dial, Inbox, Lane, connect_due, earliest
from trainshed_reduction.client.losses import Losses, lost_reducers
from trainshed_reduction.client.own_reducer import OwnReducer
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.client.running_group import RunningGroup
from trainshed_reduction.reports import Metric

_LONGEST_WAIT = 0.5


class Formation(NamedTuple):
    """`reducers`: replicas of the pool; `weights`: by lane. `lack`: why workers do not reduce beside them
    though it would pay."""

    generation: int
    lanes: List[Lane]
    weights: List[float]
    reducers: int
    shares: layout.Shares
    lack: str = ""


class GroupFormation:
    """Brings a group together: connections to the reducers, a worker's own reducer, the start of all
    ranks."""

    def __init__(self, membership: Membership, dial: Dial, inbox: Inbox) -> None:
        self._membership = membership
        self._settings = settings = membership.settings
        self._agreement = membership.agreement
        self._hello = membership.hello
        self._dial = dial
        self._inbox = inbox
        self._deadline = time.monotonic() + settings.start_limit
        self.lanes: List[Lane] = []
        """All that were made, whether or not the group came together."""
        self.beside: Optional[OwnReducer] = None
        """This worker's own reducer, if it has one."""
        self._lack = ""

    def form(self) -> Formation:
        """Raises ReductionFailed, which names what is missing; `lanes` and `beside` are then the caller's to
        end."""
        beginning = self._begin()
        hosts = [
            address
            for index, address in enumerate(self._settings.reducers)
            if index not in beginning.lost
        ]
        if not hosts:
            raise ReductionFailed("the service has given up all reducers of this job")
        self._hello = self._hello._replace(generation=beginning.generation)
        firsts = [Lane(host, Target(address, 0, address)) for host, address in enumerate(hosts)]
        self.lanes = list(firsts)
        if not beginning.generation:
            # Rank 0 chose one; the others hear of it where they all meet first.
            self._await(firsts[:1], lambda lane: lane.start is not None)
            start = firsts[0].start
            assert start is not None
            self._hello = self._hello._replace(generation=start.generation)
        self._await(firsts, lambda lane: lane.accept is not None)
        lanes = [each for first in firsts for each in _with_others(first)]
        shares = self._shares(len(hosts))
        own = self._start_own(firsts[0].own) if shares.is_hybrid else []
        if not own:
            shares = _pure(len(hosts))
        weights = [
            shares.reducer / sum(other.host == lane.host for other in lanes) for lane in lanes
        ]
        lanes += [
            Lane(len(hosts) + rank, Target(place, 0, place), rank) for rank, place in enumerate(own)
        ]
        weights += [shares.worker] * len(own)
        self.lanes = lanes
        self._await(lanes, lambda lane: lane.start is not None)
        for index, lane in enumerate(lanes):
            lane.index = index
        return Formation(self._hello.generation, lanes, weights, len(hosts), shares, self._lack)

    def run(self, formation: Formation) -> RunningGroup:
        """The group that has come together."""
        hello = self._hello._replace(generation=formation.generation)
        return RunningGroup(
            self._membership._replace(hello=hello),
            dial=self._dial,
            inbox=self._inbox,
            lanes=formation.lanes,
            weights=formation.weights,
            beside=self.beside,
        )

    def close(self) -> None:
        """End all that was begun, a worker's own reducer too."""
        for lane in self.lanes:
            lane.close()
        if self.beside is not None:
            self.beside.close()

    def _begin(self) -> GenerationStart:
        lost = tuple(
            index
            for index, address in enumerate(self._settings.reducers)
            if address in lost_reducers(self._settings.lost_file)
        )
        if self._agreement is not None:
            return self._agreement.begin(self._settings.attempt, lost, self._settings.start_limit)
        return GenerationStart(
            new_generation(self._settings.attempt) if not self._hello.rank else 0, ()
        )

    def _shares(self, reducers: int) -> layout.Shares:
        """Hybrid only where all workers can tell each other where their own reducers are."""
        settings = self._settings
        known = settings.worker_gbps > 0 and settings.reducer_gbps > 0
        if settings.mode == "pure" or (settings.mode == "auto" and not known):
            return _pure(reducers)
        speed = settings.reducer_gbps / settings.worker_gbps if known else 1.0
        shares = layout.shares(self._hello.world, reducers, speed)
        if shares.is_hybrid and self._agreement is None:
            self._lack = "there is no store to meet at"
            return _pure(reducers)
        return shares

    def _start_own(self, own: str) -> List[Address]:
        """Where the ranks' own reducers listen; nothing if some rank cannot have one: then all do without."""
        assert self._agreement is not None
        place = OwnReducerAddress("", nothing_to_show(self._settings, self._dial.tls))
        if not place.lack:
            self.beside = OwnReducer(own, self._settings, self._membership.log)
            place = OwnReducerAddress("{}:{}".format(*self.beside.address))
        self._agreement.publish_place(place)
        places = self._agreement.places(self._deadline - time.monotonic())
        for rank, each in enumerate(places):
            if each.lack:
                self._lack = "rank {} has {}".format(rank, each.lack)
                if self.beside is not None:
                    self.beside.close()
                    self.beside = None
                return []
        parts = (each.address.rpartition(":") for each in places)
        return [(host, int(port)) for host, _, port in parts]

    def _await(self, lanes: "Sequence[Lane]", ready: "Callable[[Lane], bool]") -> None:
        """Connect these and wait until they are ready. Raises ReductionFailed."""
        while not all(ready(lane) for lane in lanes):
            now = time.monotonic()
            if self._membership.operations.closing:
                raise ReductionFailed("the group was closed while it was being made")
            given_up = lost_reducers(self._settings.lost_file)
            gone = [lane for lane in lanes if lane.first in given_up and not ready(lane)]
            if gone:  # After the group has begun: its ranks have agreed to count on it.
                raise ReductionFailed("the service has given up {}".format(gone[0]))
            if now >= self._deadline:
                complaints = [lane.complaint() for lane in lanes if not ready(lane)]
                raise ReductionFailed(
                    "not all reducers and ranks are there after {:g} s: {}".format(
                        self._settings.start_limit, "; ".join(complaints[:8])
                    )
                )
            connect_due(lanes, self._dial, self._inbox, lambda _: self._hello, now)
            due = earliest(lanes)
            until = min(self._deadline, now + _LONGEST_WAIT, due if due is not None else now + 1)
            self._inbox.take(max(0.001, until - now))


def _pure(reducers: int) -> layout.Shares:
    return layout.Shares(1 / reducers, 0.0)


def _with_others(first: Lane) -> List[Lane]:
    """The lanes to all the processes of a reducer's host."""
    assert first.accept is not None
    host = first.first[0]
    return [first] + [
        Lane(first.host, Target(first.first, process, (host, port)), first.owner)
        for process, port in enumerate(first.accept.ports)
        if process
    ]


_METRICS = 5.0
"""Seconds between two reports."""
_LOG = logging.getLogger(__name__)


class Session:
    """The communicator's thread: `run` is all that it does."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._operations = membership.operations
        self._running: Optional[RunningGroup] = None
        self.formation: Optional[Formation] = None
        self._losses: Optional[Losses] = None

    def run(self) -> None:
        starting: Optional[GroupFormation] = None
        try:
            settings = self._membership.settings
            dial = Dial(settings.token, trust(settings))
            starting = GroupFormation(self._membership, dial, Inbox())
            self._serve(starting)
        except ReductionFailed as failure:
            self._fail(failure)
        except Exception as error:
            _LOG.exception("the client of the reducers failed")
            self._fail(ReductionFailed("the client of the reducers failed: {!r}".format(error)))
        finally:
            self._end(starting)

    def _serve(self, starting: GroupFormation) -> None:
        self.formation = formation = starting.form()
        running = self._running = starting.run(formation)
        losses = self._losses = Losses(
            self._membership, running.ledger, formation.lanes, formation.generation
        )
        running.begin()
        self._operations.open()
        report_at = 0.0
        while not self._operations.closing and not self._operations.is_native:
            running.turn(losses)
            now = time.monotonic()
            if now >= report_at:
                report_at = now + _METRICS
                self._report()
        running.leave()

    def metrics(self) -> Dict[str, Metric]:
        if self._running is None or self._losses is None:
            return {}
        return dict(self._running.metrics(), epoch=self._losses.epoch)

    def _report(self) -> None:
        if self._membership.reports is not None:
            self._membership.reports.metrics(self.metrics())

    def _fail(self, failure: ReductionFailed) -> None:
        if self._running is not None:
            self._running.give_up(str(failure))
            self._running.end()
        if not self._operations.closing:
            self._membership.log("reduction failed: {}".format(failure))
        self._operations.fail(failure)

    def _end(self, starting: Optional[GroupFormation]) -> None:
        if self._running is not None:
            self._report()
            self._running.close()
        if starting is not None:
            starting.close()
        if not self._operations.is_native:
            self._operations.fail(
                ReductionFailed("the group was closed before the operation was done")
            )
