"""The advisor's process: reads a call from standard input, answers on standard output, and ends.

Whatever a library prints goes to standard error: the answer has a descriptor of its own. Numpy is loaded by
the algorithms: the service imports this module, too.
"""

import os
import sys
from typing import TYPE_CHECKING, assert_never

import msgspec
from msgspec import Struct

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.core.study.spec import StudySpec
from trainshed.replica.system import kernel
from trainshed.studies.port import Algorithm, Proposals, Seen

if TYPE_CHECKING:
    from trainshed.wire.trainshed_v1.jobs import Outlook


def algorithm_for(name: AlgorithmName) -> Algorithm:
    """Return the algorithm that a study asks for."""
    match name:
        case AlgorithmName.RANDOM_SEARCH:
            from trainshed.studies.random_search import RandomSearch

            return RandomSearch()
        case AlgorithmName.GRID_SEARCH:
            from trainshed.studies.random_search import GridSearch

            return GridSearch()
        case AlgorithmName.DEFAULT:
            from trainshed.studies.gp.bandit import GaussianProcessBandit

            return GaussianProcessBandit()
        case _:
            assert_never(name)


class SuggestCall(Struct, frozen=True, tag=True):
    """Asks the algorithm that a study names for points."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    #: How many points.
    count: int
    seed: int

    def answer(self) -> Proposals:
        algorithm = algorithm_for(self.spec.algorithm)
        return algorithm.suggest(self.spec, self.trials, self.count, self.seed)


class ExpectCall(Struct, frozen=True, tag=True):
    """Asks what the model of a study expects over some of its parameters."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    parameters: tuple[str, ...]

    def answer(self) -> "Outlook":
        from trainshed.studies.gp.bandit import outlook

        return outlook(self.spec, self.trials, self.parameters)


Call = SuggestCall | ExpectCall


def main() -> None:
    """Answer one call, and end before that if the parent dies, whose id is the one argument."""
    kernel.help_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    call: Call = msgspec.json.decode(sys.stdin.buffer.read(), type=Call)
    with answers:
        answers.write(msgspec.json.encode(call.answer()))


if __name__ == "__main__":
    main()
