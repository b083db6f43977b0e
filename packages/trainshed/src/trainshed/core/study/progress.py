"""What counts as progress in a study: final measurements, objectives, the limits at which it ends,
and its optimal trials.

Pure, and without numpy: the service calls it for every trial that ends.
"""

from collections.abc import Iterable, Sequence
from operator import ge
from typing import Protocol, TypeVar

from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.study.spec import Goal, Limits, Metric, Selection, StudySpec
from trainshed.core.units import Nanos


def score(metric: Metric, value: float) -> float:
    """Return the value with a sign such that more is better, whatever the goal."""
    return value if metric.goal is Goal.MAXIMIZE else -value


def final_measurement(spec: StudySpec, measurements: Iterable[Measurement]) -> Measurement | None:
    """Return the final one of a trial's measurements, which come in the order in which they were made. None
    if none can be that; then the trial is infeasible (facts/tuning#metrics).

    A measurement that lacks one of the study's metrics cannot be a final one.
    LAST: the last one that has all. BEST: the one with the best value of the objective, the earliest of equal
    ones. The public API does not say what is best among several objectives: then it is the last one, too.
    """
    ids = [metric.id for metric in spec.metrics]
    complete = [item for item in measurements if None not in map(item.value, ids)]
    if not complete:
        return None
    aim, *others = spec.metrics
    if spec.selection is Selection.LAST or others:
        return complete[-1]
    return max(complete, key=lambda item: score(aim, item.value(aim.id) or 0.0))


def limit_reached(spec: StudySpec, trials: Sequence[Trial], created: Nanos, now: Nanos) -> str:
    """Return which limit a study has reached, in words; "" = none. `trials`: all of its trials, ascending by
    number."""
    limits = spec.limits
    if limits.min_trials is not None and len(trials) < limits.min_trials:
        return ""
    if limits.min_duration is not None and now - created < limits.min_duration:
        return ""
    if limits.max_trials is not None and len(trials) >= limits.max_trials:
        return f"it has {len(trials)} trials of at most {limits.max_trials}"
    if limits.max_duration is not None and now - created >= limits.max_duration:
        return f"it is older than {limits.max_duration / 1e9:g} s"
    if limits.end_at is not None and now >= limits.end_at:
        return "its last moment has come"
    return _without_progress(limits, spec, trials, now)


def moments(spec: StudySpec, trials: Sequence[Trial], created: Nanos) -> tuple[int, ...]:
    """Return the moments (ns), also past ones, at which the answer of `limit_reached` may change with time
    alone."""
    limits = spec.limits
    finals = [
        created + duration for duration in (limits.min_duration, limits.max_duration) if duration
    ]
    if limits.end_at is not None:
        finals.append(limits.end_at)
    if limits.max_duration_without_progress is not None:
        _, at = _progress(spec, trials)
        if at:
            finals.append(at + limits.max_duration_without_progress)
    return tuple(finals)


def _without_progress(limits: Limits, spec: StudySpec, trials: Sequence[Trial], now: Nanos) -> str:
    many, long = limits.max_trials_without_progress, limits.max_duration_without_progress
    if many is None and long is None:
        return ""
    since, at = _progress(spec, trials)
    if many is not None and since >= many:
        return f"its last {since} trials brought nothing better"
    if long is not None and at and now - at >= long:
        return f"nothing better was found for {(now - at) / 1e9:.0f} s"
    return ""


def _progress(spec: StudySpec, trials: Sequence[Trial]) -> tuple[int, int]:
    """Return how many trials ended after the last one that was the best so far, and when that one ended (ns,
    0 = there is none). With several objectives, that is the last trial that was better in any of them."""
    done = sorted(
        (t for t in trials if t.state is TrialState.SUCCEEDED and t.final is not None),
        key=lambda trial: (trial.ended, trial.number),
    )
    best: dict[str, float] = {}
    since, at = 0, 0
    for trial in done:
        since += 1
        for metric in spec.metrics:
            value = trial.final.value(metric.id) if trial.final else None
            if value is None:
                continue
            if metric.id not in best or score(metric, value) > best[metric.id]:
                best[metric.id] = score(metric, value)
                since, at = 0, trial.ended
    return since, at


class Tried(Protocol):
    """What is needed of a trial here; `core.study.records.Trial` and `studies.port.Seen` both have it."""

    @property
    def number(self) -> int: ...
    @property
    def final(self) -> Measurement | None: ...


AnyTrial = TypeVar("AnyTrial", bound=Tried)
Scores = tuple[float, ...]


def optimal_trials(spec: StudySpec, trials: Sequence[AnyTrial]) -> tuple[AnyTrial, ...]:
    """Return the Pareto-optimal trials, ascending by number; for one objective the best, with all equal ones.

    Trials without a final measurement of all metrics are left out. Takes at most n times the front.
    """
    rated = [(scores, trial) for trial in trials if (scores := _scores(spec, trial)) is not None]
    front = _front({scores for scores, _ in rated})
    best = [trial for scores, trial in rated if scores in front]
    return tuple(sorted(best, key=lambda trial: trial.number))


def _scores(spec: StudySpec, trial: Tried) -> Scores | None:
    """Return the metrics, more is better in each; None if the trial does not take part."""
    if trial.final is None:
        return None
    scores: list[float] = []
    for metric in spec.metrics:
        value = trial.final.value(metric.id)
        if value is None:
            return None
        scores.append(score(metric, value))
    return tuple(scores)


def _front(all_scores: set[Scores]) -> set[Scores]:
    """Return what nothing dominates. In descending order what dominates others comes before them."""
    front: set[Scores] = set()
    for scores in sorted(all_scores, reverse=True):
        if not any(all(map(ge, other, scores)) for other in front):
            front.add(scores)
    return front
