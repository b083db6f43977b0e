"""Which way sums go by what ranks have measured: trials, hysteresis, looks (spec/reduction#choice)."""

from collections.abc import Callable, Sequence

import pytest

from trainshed_reduction.client import choice
from trainshed_reduction.client.choice import (
    NATIVE,
    REST,
    Choice,
    Measured,
    Outcome,
    Stopwatch,
    Way,
)

SIZE = 8 << 20
Costs = Callable[[Way], float]
"""Picoseconds a byte that a way takes."""


class Ranks:
    """Ranks in lockstep, each with a choice and a watch of its own; a way takes what `costs` says of it."""

    def __init__(self, costs: Costs, world: int = 3) -> None:
        self.costs = costs
        self.choices = [Choice() for _ in range(world)]
        self.watches = [Stopwatch() for _ in range(world)]
        self.now = 0.0
        self.outcomes: list[Outcome] = []
        self.went: list[Way] = []
        #: Seconds for which the others wait for each in every operation.
        self.late = [0.0] * world

    def operations(self, count: int, *sizes: int) -> None:
        for number in range(count):
            self._operation((sizes or (SIZE,))[number % max(1, len(sizes))])

    def _operation(self, nbytes: int) -> None:
        due = {choice.next(nbytes) for choice in self.choices}
        assert len(due) == 1
        if due.pop():
            reports = [
                watch.measured(choice.ways)
                for watch, choice in zip(self.watches, self.choices, strict=True)
            ]
            outcomes = [choice.compare(reports) for choice in self.choices]
            assert len({repr(choice) for choice in outcomes}) == 1
            self.outcomes += [choice for choice in outcomes[:1] if choice is not None]
        (way,) = {choice.current for choice in self.choices}
        self.went.append(way)
        seconds = self.costs(way) * nbytes / 1e12
        for watch, own, late in zip(self.watches, self.choices, self.late, strict=True):
            watch.began(own.period, way, nbytes, self.now + late)
        self.now += max(self.late) + seconds
        for watch in self.watches:
            watch.ended(self.now)


def fixed(native: float, reducers: float) -> Costs:
    return lambda way: native if way.is_native else reducers


def test_the_faster_way_is_found_in_a_few_operations() -> None:
    """spec/reduction#choice: all ranks take it at the same operation, and it is the one that took less
    time."""
    for native, reducers, is_native in ((40e3, 60e3, True), (60e3, 40e3, False)):
        ranks = Ranks(fixed(native, reducers))
        ranks.operations(60)
        (outcome,) = ranks.outcomes
        assert outcome.way.is_native is is_native
        assert {way.is_native for way in ranks.went[-20:]} == {is_native}


def test_reducers_that_are_hardly_faster_are_not_taken() -> None:
    """spec/reduction#choice: what is within noise goes natively, whatever went before."""
    ranks = Ranks(fixed(50e3, 49e3))
    ranks.operations(60)
    assert ranks.outcomes[0].way == NATIVE
    ranks = Ranks(fixed(50e3, 40e3))
    ranks.operations(60)
    assert not ranks.outcomes[0].way.is_native
    ranks.costs = fixed(50e3, 51e3)
    ranks.operations(3 * REST)
    assert ranks.outcomes[-1].way == NATIVE


def test_both_are_tried_again_now_and_then() -> None:
    """spec/reduction#choice: what has changed is noticed within some thousand operations, at half a percent
    of the time."""
    ranks = Ranks(fixed(60e3, 40e3))
    ranks.operations(60)
    ranks.costs = fixed(60e3, 90e3)
    ranks.operations(2 * REST)
    assert ranks.outcomes[-1].way.is_native
    ranks.operations(30_000)
    tried = sum(not way.is_native for way in ranks.went[-30_000:])
    assert 0 < tried < 0.01 * 30_000


def test_a_way_that_is_much_slower_is_tried_more_rarely() -> None:
    """spec/reduction#choice: trials cost half a percent of the time at most, apart from the first ones."""
    ranks = Ranks(fixed(40e3, 4000e3))
    ranks.operations(60)
    began, ended = ranks.now, len(ranks.went)
    ranks.operations(100_000)
    least = 100_000 * 40e3 * SIZE / 1e12
    assert len(ranks.went) > ended
    assert ranks.now - began < 1.02 * least


def test_a_slow_rank_hides_nothing() -> None:
    """spec/reduction#choice: the ranks that wait for it measure that as well; it itself measures the way."""
    ranks = Ranks(fixed(40e3, 60e3))
    ranks.late = [0.0, 5.0, 0.0]
    ranks.operations(60)
    assert ranks.outcomes[0].way == NATIVE
    assert min(ranks.outcomes[0].costs.values()) == pytest.approx(40e3, rel=0.01)


def test_sizes_that_repeat_from_step_to_step_are_tried_whole() -> None:
    """spec/reduction#choice: a block of operations ends where its first size comes again."""
    ranks = Ranks(lambda way: 60e3 if way.is_native else 50e3)
    ranks.operations(100, SIZE, SIZE // 2, SIZE // 4, SIZE // 8)
    blocks = [way for way in ranks.went[:40] if way.is_native]
    assert len(blocks) % 4 == 0
    assert not ranks.outcomes[0].way.is_native


def test_operations_of_two_ways_at_once_say_nothing_of_either() -> None:
    """spec/reduction#choice: only what was alone under way is measured, from pause to pause."""
    watch = Stopwatch()
    way, other = Way(0), NATIVE
    watch.began(1, way, 1000, 0.0)
    watch.began(1, way, 3000, 1.0)
    watch.ended(2.0)
    watch.ended(4.0)
    watch.began(1, way, 1000, 5.0)
    watch.began(1, other, 1000, 5.5)
    watch.ended(6.0)
    watch.ended(7.0)
    assert watch.measured((way, other)) == [Measured(10**9, 1), Measured(0, 0)]
    # What was begun in an earlier period does not count in the next.
    watch.began(1, way, 1000, 8.0)
    watch.began(2, way, 1000, 8.5)
    watch.ended(9.0)
    watch.ended(9.5)
    assert watch.measured((way, other)) == [Measured(0, 0)] * 2


def test_what_cannot_be_measured_is_tried_with_more_operations_and_then_left() -> None:
    """spec/reduction#choice: never a wait without end for a sample; the reducers go on meanwhile."""
    chooser = Choice()
    reports: Sequence[Sequence[Measured]] = ()
    compared = 0
    for _ in range(1000):
        if chooser.next(SIZE):
            compared += 1
            reports = [[Measured(0, 0)] * len(chooser.ways)] * 2
            assert chooser.compare(reports) is None
        assert not chooser.current.is_native
    assert compared == choice.LONGEST + 1
