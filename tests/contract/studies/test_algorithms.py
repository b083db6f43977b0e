"""The contract of every algorithm behind `studies.port.Algorithm`. A new algorithm is added to
`ALGORITHMS` (spec/tuning#algorithms)."""

from functools import cache

import msgspec
import pytest

from tests.contract.studies.parameter_trees import (
    LISTED,
    LOSS,
    MIXED,
    bowl,
    cube,
    finished_trial,
    legal,
    mixed_loss,
    pending,
    play,
)
from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec
from trainshed.studies.advisor_process import algorithm_for
from trainshed.studies.port import Algorithm, TrialData
from trainshed.studies.random_search import RandomSearch

pytestmark = pytest.mark.numerical
ALGORITHMS = {
    "random": AlgorithmName.RANDOM_SEARCH,
    "grid": AlgorithmName.GRID_SEARCH,
    "gp-bandit": AlgorithmName.DEFAULT,
}

FLAT = StudySpec(cube(3), (LOSS,))
TREE = StudySpec(MIXED, (LOSS,))
COUNTABLE = StudySpec(LISTED, (LOSS,))


@pytest.fixture(scope="module", params=list(ALGORITHMS))
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    return algorithm_for(ALGORITHMS[request.param])


@cache
def some_trials(algorithm: Algorithm, spec: StudySpec) -> list[TrialData]:
    """Return six finished trials, one of them infeasible, and two pending ones."""
    objective = mixed_loss if spec is TREE else bowl
    trials = play(algorithm, spec, objective, 5)
    for number in (6, 7, 8):
        (point,) = algorithm.suggest(spec, trials, 1, 7).parameters
        trials.append(finished_trial(number, point, None) if number == 6 else pending(number, point))
    return trials


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
def test_suggested_points_are_valid(algorithm: Algorithm, spec: StudySpec) -> None:
    """spec/tuning#parameters: every type, scale and condition. Values are exactly within the
    bounds, and only active parameters are set."""
    trials = some_trials(algorithm, spec)
    proposed = algorithm.suggest(spec, trials, 3, 7).parameters
    assert len(proposed) == 3
    for point in [trial.parameters for trial in trials] + list(proposed):
        assert legal(spec, point), point


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
def test_same_trials_and_seed_give_the_same_suggestions(algorithm: Algorithm, spec: StudySpec) -> None:
    """spec/tuning#reproducible: a study that is loaded from the store, in any order, continues unchanged."""
    trials = some_trials(algorithm, spec)
    first = algorithm.suggest(spec, trials, 2, 7)
    stored = msgspec.json.decode(msgspec.json.encode(trials), type=tuple[TrialData, ...])
    assert algorithm.suggest(spec, stored[::-1], 2, 7) == first


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
@pytest.mark.parametrize("with_trials", [False, True], ids=["at the start", "later"])
def test_suggestions_in_a_batch_equal_suggestions_in_sequence(
    algorithm: Algorithm, spec: StudySpec, with_trials: bool
) -> None:
    """The port's contract: two suggestions at once equal two suggestions in sequence, each stored
    before the next."""
    trials = some_trials(algorithm, spec) if with_trials else []
    one_by_one: list[Parameters] = []
    stored = list(trials)
    for _ in range(3):
        (point,) = algorithm.suggest(spec, stored, 1, 7).parameters
        one_by_one.append(point)
        stored.append(pending(len(stored) + 1, point))
    assert list(algorithm.suggest(spec, trials, 3, 7).parameters) == one_by_one


@pytest.mark.parametrize("value", [None, 1.0], ids=["infeasible", "flat"])
def test_equal_results_of_all_trials_do_not_end_the_search(algorithm: Algorithm, value: float | None) -> None:
    trials: list[TrialData] = []
    for number in range(1, 13):
        (point,) = algorithm.suggest(FLAT, trials, 1, 7).parameters
        trials.append(finished_trial(number, point, value))
    assert len({trial.parameters for trial in trials}) == 12


def test_trials_outside_the_parameter_space_are_accepted(algorithm: Algorithm) -> None:
    """A stored trial may not fit the tree: unlisted values, missing or additional parameters."""
    odd: list[Parameters] = [
        (),
        (("kind", "unheard of"), ("rate", 0.1)),
        (("kind", "net"), ("rate", 7.0), ("layers", 2), ("units", 17.0), ("momentum", 0.1)),
        (("kind", "tree"), ("rate", 0.1), ("layers", 2), ("elsewhere", "x")),
    ]
    trials = [finished_trial(number, point, float(number)) for number, point in enumerate(odd, 1)]
    trials.append(pending(5, odd[1]))
    (point,) = algorithm.suggest(TREE, trials, 1, 7).parameters
    assert legal(TREE, point)


def test_parameter_space_with_a_single_point_is_supported(algorithm: Algorithm) -> None:
    only = StudySpec((Parameter("one", ParameterType.INTEGER, 3, 3),), (LOSS,))
    proposed = algorithm.suggest(only, [], 1, 7).parameters
    assert proposed == ((("one", 3),),)
    again = algorithm.suggest(only, [finished_trial(1, proposed[0], 1.0)], 1, 7)
    assert again.exhausted or again.parameters == proposed


def test_suggestions_in_a_finite_parameter_space_are_valid_until_its_last_point(algorithm: Algorithm) -> None:
    """There are more trials than points. Grid search ends and other algorithms may repeat points
    (facts/tuning#vertex), but only random search repeats before it has tried all."""
    trials: list[TrialData] = []
    for number in range(1, 22):
        proposals = algorithm.suggest(COUNTABLE, trials, 1, 7)
        if proposals.exhausted:
            break
        assert legal(COUNTABLE, proposals.parameters[0])
        trials.append(finished_trial(number, proposals.parameters[0], float(number % 5)))
    tried = len({trial.parameters for trial in trials[:18]})
    assert tried > 8 if isinstance(algorithm, RandomSearch) else tried == 18
