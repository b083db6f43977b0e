"""Random search and grid search: algorithms that learn nothing from what trials measured (facts/tuning#ml).

Random search draws every trial anew, numbers evenly on their scale, lists evenly over their values. Grid
search walks one grid over the whole tree of parameters, in a fixed order.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter, StudySpec, Value, is_same
from trainshed.studies.port import Proposals, Seen
from trainshed.studies.space import Node, Space

STEPS = 11
"""Grid places of a DOUBLE: its two ends, and the tenths between them."""


class RandomSearch:
    """Implements `studies.port.Algorithm`. Looks only at the numbers of trials."""

    def suggest(self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int) -> Proposals:
        space = Space(spec.parameters)
        next_number = max((trial.number for trial in trials), default=0) + 1
        shares = np.array(
            [
                np.random.default_rng((abs(seed), number)).random(space.width)
                for number in range(next_number, next_number + count)
            ]
        )
        codes = space.snap(space.place(shares.reshape(count, space.width)))
        return Proposals(tuple(space.decode(row) for row in codes))


class GridSearch:
    """Implements `studies.port.Algorithm`. Does not propose points that were tried or are pending, whoever
    made them."""

    def suggest(self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int) -> Proposals:
        grid = Grid(spec.parameters)
        tried = {trial.parameters for trial in trials}
        number = max((trial.number for trial in trials), default=0) + 1
        points: list[Parameters] = []
        for _ in range(count):
            point = _untried(grid, tried, number + len(points))
            if point is None:
                return Proposals(tuple(points), exhausted=True)
            tried.add(point)
            points.append(point)
        return Proposals(tuple(points))


def _untried(grid: "Grid", tried: set[Parameters], number: int) -> Parameters | None:
    """Return the first untried point from the place of trial `number` on, then from the beginning; None if
    there is none.

    Usually that place itself is untried, so a long study pays for one look, not for all that came before.
    """
    for step in range(min(grid.size, len(tried) + 1)):
        point = grid.point((number - 1 + step) % grid.size)
        if point not in tried:
            return point
    return None


class Grid:
    """All points of a tree of parameters in one order."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._roots: list[_Branch] = []
        branches: list[_Branch] = []
        for index, parameter in enumerate(parameters):
            branches.append(_Branch(index, Node(parameter), []))
            siblings = branches[parameter.parent].children if parameter.parent >= 0 else self._roots
            siblings.append(branches[-1])
        #: How many points there are.
        self.size = math.prod(root.ways for root in self._roots)

    def point(self, place: int) -> Parameters:
        """Return the point at a place, 0 to `size` - 1."""
        chosen: list[tuple[int, str, Value]] = []
        _choose(self._roots, place, chosen)
        return tuple((name, value) for _, name, value in sorted(chosen, key=lambda entry: entry[0]))


def _choose(
    siblings: Sequence["_Branch"], place: int, chosen: list[tuple[int, str, Value]]
) -> None:
    for branch in reversed(siblings):
        place, rest = divmod(place, branch.ways)
        position, rest = branch.find(rest)
        chosen.append((branch.index, branch.node.parameter.id, branch.value(position)))
        _choose(branch.active(position), rest, chosen)


class _Branch:
    """A node and its subtree. Its values are numbered from 0 on; most of them activate no child."""

    def __init__(self, index: int, node: Node, children: "list[_Branch]") -> None:
        self.index = index
        self.node = node
        self.children = children

    @cached_property
    def ways(self) -> int:
        """In how many ways the node and its subtree can be set."""
        plain = (self.node.size or STEPS) - len(self._forks)
        return plain + sum(ways for _, ways in self._forks)

    @cached_property
    def _forks(self) -> list[tuple[int, int]]:
        """The positions that activate a child, ascending, and in how many ways their children can be set."""
        values = [value for child in self.children for value in child.node.parameter.when]
        positions = {at for value in values if (at := self.node.position(value)) is not None}
        return [
            (at, math.prod(child.ways for child in self.active(at))) for at in sorted(positions)
        ]

    def value(self, position: int) -> Value:
        if self.node.size == 0:
            return self.node.value(position / (STEPS - 1))
        return self.node.listed_value(position)

    def active(self, position: int) -> "list[_Branch]":
        """Return the children that are active at a position."""
        if not self.children:
            return []
        value = self.value(position)
        return [
            child
            for child in self.children
            if any(is_same(value, trigger) for trigger in child.node.parameter.when)
        ]

    def find(self, place: int) -> tuple[int, int]:
        """Return the position that a place falls on, and the place among the ways below that position."""
        passed = 0
        for position, ways in self._forks:
            plain = position - passed
            if place < plain:
                break
            place -= plain
            if place < ways:
                return position, place
            place -= ways
            passed = position + 1
        return passed + place, 0
