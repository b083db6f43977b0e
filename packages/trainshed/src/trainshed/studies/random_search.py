"""Random search and grid search: algorithms that learn nothing from what trials measured (facts/tuning#ml).

Random search draws every trial anew, numbers evenly on their scale, lists evenly over their values. Grid
search walks one grid over the whole tree of parameters, in a fixed order.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

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
        tried = {trial.parameters for trial in trials}
        fresh = (point for point in grid(spec.parameters) if point not in tried)
        points = tuple(islice(fresh, count))
        return Proposals(points, exhausted=len(points) < count)


def grid(parameters: Sequence[Parameter]) -> Iterator[Parameters]:
    """Yield all points of a tree of parameters, in the order in which the last one changes fastest."""
    nodes = [Node(parameter) for parameter in parameters]

    def points(index: int, chosen: dict[int, Value]) -> Iterator[Parameters]:
        if index == len(nodes):
            yield tuple((nodes[at].parameter.id, value) for at, value in chosen.items())
            return
        parent, when = nodes[index].parameter.parent, nodes[index].parameter.when
        if parent is None or (
            parent in chosen and any(is_same(chosen[parent], trigger) for trigger in when)
        ):
            node = nodes[index]
            evenly = (node.value(step / (STEPS - 1)) for step in range(STEPS))
            for value in node.choices if node.size else evenly:
                yield from points(index + 1, {**chosen, index: value})
        else:
            yield from points(index + 1, chosen)

    return points(0, {})
