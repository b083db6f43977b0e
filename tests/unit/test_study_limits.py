"""When a study ends by itself (facts/tuning#vertex, studyStoppingConfig)."""

import pytest

from tests.sim.tuning_jobs import METRIC, study_spec
from tests.unit.jobs import CREATED, SECOND
from trainshed.core.study.progress import limit_reached
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Goal, Limits, Metric, StudySpec

MINUTE = 60 * SECOND


def trial(number: int, *values: float, ended: int = 0, state: TrialState | None = None) -> Trial:
    """One that is over with these values of metrics, or ACTIVE without any."""
    names = (METRIC, "loss")
    final = Measurement(tuple(zip(names, values, strict=False))) if values else None
    default = TrialState.SUCCEEDED if values else TrialState.ACTIVE
    over = CREATED + (ended or number * SECOND)
    return Trial(
        StudyUid(1),
        number,
        state or default,
        (("x", 0.5),),
        CREATED,
        ended=over if values else 0,
        final=final,
    )


def trials(*values: float) -> tuple[Trial, ...]:
    return tuple(trial(number, value) for number, value in enumerate(values, 1))


def reached(limits: Limits, found: tuple[Trial, ...], age: int = 0) -> str:
    return limit_reached(study_spec(limits=limits), found, CREATED, CREATED + age)


@pytest.mark.parametrize(
    ("limits", "few", "many"),
    [(Limits(max_trials=3), 2, 3), (Limits(max_trials=3, min_trials=5), 4, 5)],
)
def test_it_has_so_many_trials_at_most_but_not_before_it_has_as_many_as_it_must(
    limits: Limits, few: int, many: int
) -> None:
    """maxNumTrials, minNumTrials: all trials count, those that run among them."""
    assert reached(limits, tuple(trial(n) for n in range(1, few + 1))) == ""
    assert "at most 3" in reached(limits, tuple(trial(n) for n in range(1, many + 1)))


def test_it_is_so_old_at_most_but_not_before_it_is_as_old_as_it_must() -> None:
    """maximumRuntimeConstraint, minimumRuntimeConstraint."""
    limits = Limits(max_duration=MINUTE)
    assert reached(limits, (), MINUTE - 1) == ""
    assert "60 s" in reached(limits, (), MINUTE)
    assert reached(Limits(max_duration=MINUTE, min_duration=2 * MINUTE), (), MINUTE) == ""
    assert reached(Limits(max_trials=1, min_duration=2 * MINUTE), trials(1.0), MINUTE) == ""


def test_it_ends_at_its_last_moment() -> None:
    limits = Limits(end_at=CREATED + MINUTE)
    assert reached(limits, (), MINUTE - 1) == ""
    assert reached(limits, (), MINUTE)


def test_so_many_trials_may_bring_nothing_better() -> None:
    """maxNumTrialsNoProgress: counted from the best one; an equal one is no progress."""
    limits = Limits(max_trials_without_progress=2)
    assert reached(limits, trials(0.5, 0.4)) == ""
    assert "2 trials" in reached(limits, trials(0.5, 0.4, 0.5))
    assert reached(limits, trials(0.5, 0.4, 0.6)) == ""
    assert reached(limits, trials(0.5, 0.4, 0.6, 0.1, 0.1))


def test_any_objective_may_progress() -> None:
    """Several objectives: the last trial that was better in any of them."""
    metrics = (Metric(METRIC, Goal.MAXIMIZE), Metric("loss", Goal.MINIMIZE))
    spec = StudySpec(study_spec().parameters, metrics, limits=Limits(max_trials_without_progress=1))
    both = (trial(1, 0.5, 0.5), trial(2, 0.4, 0.4))
    assert limit_reached(spec, both, CREATED, CREATED) == ""
    assert limit_reached(spec, (*both, trial(3, 0.5, 0.4)), CREATED, CREATED)


def test_so_long_nothing_better_may_be_found() -> None:
    """maxDurationNoProgress: from the end of the trial that is the best; before the first result it does not
    run."""
    limits = Limits(max_duration_without_progress=MINUTE)
    assert reached(limits, (trial(1),), 10 * MINUTE) == ""
    done = (trial(1, 0.5, ended=MINUTE), trial(2, 0.4, ended=2 * MINUTE))
    assert reached(limits, done, 2 * MINUTE - 1) == ""
    assert "60 s" in reached(limits, done, 2 * MINUTE)
