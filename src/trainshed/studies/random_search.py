"""Random search: every trial drawn anew, numbers evenly on their scale, lists evenly over their values (facts §7.1)."""

from collections.abc import Sequence

import numpy as np

from trainshed.core.study.spec import StudySpec
from trainshed.studies.port import Proposals, Seen
from trainshed.studies.space import Space


class RandomSearch:
    """See `studies.port.Algorithm`. Looks at nothing of a trial but its number."""

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
