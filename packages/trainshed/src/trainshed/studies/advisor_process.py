"""The advisor's process: reads a request from standard input, writes the response to standard output, and
exits. Standard output of libraries is redirected to standard error, because the response has its own file
descriptor. Only the algorithms import NumPy, because the service imports this module too."""

import os
import sys
from typing import TYPE_CHECKING, assert_never

import msgspec
from msgspec import Struct

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.core.study.spec import StudySpec
from trainshed.replica.system import kernel
from trainshed.studies.port import Algorithm, Proposals, TrialData

if TYPE_CHECKING:
    from trainshed.wire.trainshed_v1.jobs import Outlook


def algorithm_for(name: AlgorithmName) -> Algorithm:
    """Return the algorithm with this name."""
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
    """A request for new points by an algorithm."""

    spec: StudySpec
    trials: tuple[TrialData, ...]
    #: The number of points.
    count: int
    seed: int

    def answer(self) -> Proposals:
        algorithm = algorithm_for(self.spec.algorithm)
        return algorithm.suggest(self.spec, self.trials, self.count, self.seed)


class ExpectCall(Struct, frozen=True, tag=True):
    """A request for the model's expectation over one or two parameters of a study."""

    spec: StudySpec
    trials: tuple[TrialData, ...]
    parameters: tuple[str, ...]

    def answer(self) -> "Outlook":
        from trainshed.studies.gp.bandit import outlook

        return outlook(self.spec, self.trials, self.parameters)


Call = SuggestCall | ExpectCall


def main() -> None:
    """Process one request. The only argument is the parent's process ID. The process exits early if the
    parent exits."""
    kernel.become_helper(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    call: Call = msgspec.json.decode(sys.stdin.buffer.read(), type=Call)
    with answers:
        answers.write(msgspec.json.encode(call.answer()))


if __name__ == "__main__":
    main()
