"""What every algorithm promises behind `studies.port.Algorithm`; a new one is added to `ALGORITHMS`
(spec/tuning#algorithms)."""

from functools import cache

import msgspec
import pytest

from tests.contract.studies.trees import (
    LISTED,
    LOSS,
    MIXED,
    bowl,
    cube,
    legal,
    mixed_loss,
    over,
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
    """Six that are over, one of them infeasible, and two pending."""
    objective = mixed_loss if spec is TREE else bowl
    trials = play(algorithm, spec, objective, 5)
    for number in (6, 7, 8):
        (point,) = algorithm.suggest(spec, trials, 1, 7).parameters
        trials.append(over(number, point, None) if number == 6 else pending(number, point))
    return trials


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
def test_points_are_legal(algorithm: Algorithm, spec: StudySpec) -> None:
    """spec/tuning#parameters: every type, scale and condition; values exactly within the bounds, only the
    active parameters."""
    trials = some_trials(algorithm, spec)
    proposed = algorithm.suggest(spec, trials, 3, 7).parameters
    assert len(proposed) == 3
    for point in [trial.parameters for trial in trials] + list(proposed):
        assert legal(spec, point), point


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
def test_same_trials_and_seed_give_the_same_answer(algorithm: Algorithm, spec: StudySpec) -> None:
    """spec/tuning#reproducible: a study that is read back, in any order, goes on as if nothing happened."""
    trials = some_trials(algorithm, spec)
    first = algorithm.suggest(spec, trials, 2, 7)
    stored = msgspec.json.decode(msgspec.json.encode(trials), type=tuple[TrialData, ...])
    assert algorithm.suggest(spec, stored[::-1], 2, 7) == first


@pytest.mark.parametrize("spec", [FLAT, TREE], ids=["flat", "tree"])
@pytest.mark.parametrize("with_trials", [False, True], ids=["at the start", "later"])
def test_two_at_once_are_one_after_the_other(
    algorithm: Algorithm, spec: StudySpec, with_trials: bool
) -> None:
    """The port's promise: who asks for 2 gets what who asks for 1, stores it, and asks again, gets."""
    trials = some_trials(algorithm, spec) if with_trials else []
    one_by_one: list[Parameters] = []
    stored = list(trials)
    for _ in range(3):
        (point,) = algorithm.suggest(spec, stored, 1, 7).parameters
        one_by_one.append(point)
        stored.append(pending(len(stored) + 1, point))
    assert list(algorithm.suggest(spec, trials, 3, 7).parameters) == one_by_one


@pytest.mark.parametrize("value", [None, 1.0], ids=["infeasible", "flat"])
def test_trials_that_are_all_alike_are_no_end(algorithm: Algorithm, value: float | None) -> None:
    trials: list[TrialData] = []
    for number in range(1, 13):
        (point,) = algorithm.suggest(FLAT, trials, 1, 7).parameters
        trials.append(over(number, point, value))
    assert len({trial.parameters for trial in trials}) == 12


def test_a_user_may_have_created_any_trial(algorithm: Algorithm) -> None:
    """A stored trial need not come from the tree: unlisted values, missing and surplus parameters."""
    odd: list[Parameters] = [
        (),
        (("kind", "unheard of"), ("rate", 0.1)),
        (("kind", "net"), ("rate", 7.0), ("layers", 2), ("units", 17.0), ("momentum", 0.1)),
        (("kind", "tree"), ("rate", 0.1), ("layers", 2), ("elsewhere", "x")),
    ]
    trials = [over(number, point, float(number)) for number, point in enumerate(odd, 1)]
    trials.append(pending(5, odd[1]))
    (point,) = algorithm.suggest(TREE, trials, 1, 7).parameters
    assert legal(TREE, point)


def test_a_space_of_one_point(algorithm: Algorithm) -> None:
    only = StudySpec((Parameter("one", ParameterType.INTEGER, 3, 3),), (LOSS,))
    proposed = algorithm.suggest(only, [], 1, 7).parameters
    assert proposed == ((("one", 3),),)
    again = algorithm.suggest(only, [over(1, proposed[0], 1.0)], 1, 7)
    assert again.exhausted or again.parameters == proposed


def test_countable_spaces_stay_legal_to_the_end(algorithm: Algorithm) -> None:
    """More trials than there are points: grid search ends, others may repeat (facts/tuning#vertex); only
    random search does so before all were tried."""
    trials: list[TrialData] = []
    for number in range(1, 22):
        proposals = algorithm.suggest(COUNTABLE, trials, 1, 7)
        if proposals.exhausted:
            break
        assert legal(COUNTABLE, proposals.parameters[0])
        trials.append(over(number, proposals.parameters[0], float(number % 5)))
    tried = len({trial.parameters for trial in trials[:18]})
    assert tried > 8 if isinstance(algorithm, RandomSearch) else tried == 18
