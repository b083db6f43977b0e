"""Random search and grid search, which ignore measurements of trials (facts/tuning#ml). Random search draws
every trial independently: numbers uniformly on their scale, and lists uniformly over their values. Grid
search visits one grid over the tree of parameters in a fixed order."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter, StudySpec, Value, is_same
from trainshed.studies.port import Proposals, TrialData
from trainshed.studies.space import Node, Space

STEPS = 11
"""Grid points of a DOUBLE parameter: both bounds, and steps of a tenth between them."""


class RandomSearch:
    """Implements `studies.port.Algorithm`. Each suggestion depends only on the trial's number, the seed and
    the specification, not on the results of other trials."""

    def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
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
    """Implements `studies.port.Algorithm`. Does not propose points that were tried or are pending,
    regardless of their origin."""

    def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        tried = {trial.parameters for trial in trials}
        fresh = (point for point in grid(spec.parameters) if point not in tried)
        points = tuple(islice(fresh, count))
        return Proposals(points, exhausted=len(points) < count)


def grid(parameters: Sequence[Parameter]) -> Iterator[Parameters]:
    """Yield all points of a tree of parameters. The last parameter changes fastest."""
    nodes = [Node(parameter) for parameter in parameters]

    chosen: dict[int, Value] = {}

    def values(node: Node) -> Iterator[Value | None]:
        """Yield the values of a parameter, given the values of the parameters before it. None stands for an
        inactive parameter."""
        parent, when = node.parameter.parent, node.parameter.when
        if parent is not None and not (
            parent in chosen and any(is_same(chosen[parent], trigger) for trigger in when)
        ):
            yield None
        elif node.size:
            yield from node.choices
        else:
            yield from (node.value(step / (STEPS - 1)) for step in range(STEPS))

    # A stack instead of recursion, because there may be a thousand parameters.
    levels = [values(nodes[0])]
    while levels:
        chosen.pop(len(levels) - 1, None)
        for value in levels[-1]:
            if value is not None:
                chosen[len(levels) - 1] = value
            if len(levels) < len(nodes):
                levels.append(values(nodes[len(levels)]))
            else:
                yield tuple((nodes[at].parameter.id, value) for at, value in chosen.items())
            break
        else:
            levels.pop()
