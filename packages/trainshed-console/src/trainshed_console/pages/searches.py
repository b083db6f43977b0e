"""Charts and the table of a parameter search, which is a tuning job or a study. Also the page of a job's
trials."""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from msgspec import UNSET, Struct, field

from trainshed.wire.status import CallRejected, StatusCode
from trainshed.wire.trainshed_v1.jobs import JobDescription, Trial, Tuning
from trainshed_console.pages.job import describe, tab_view
from trainshed_console.rendering import fits_log, number_text, objective_data
from trainshed_console.views import Part, View, Visit

HEIGHT: Final = 260.0
"""Height of a chart in SVG units. The next two constants are in the same units."""
_TOP: Final = 10.0
_WIDTH: Final = 1000.0
_MAX_TRIALS: Final = 400
"""Maximum number of trials in charts and the table. They are the newest trials."""


class Metric(Struct, frozen=True):
    """A metric of trials."""

    name: str
    #: Whether larger values are better; None = unknown.
    is_maximized: bool | None = None


class Search(Struct, frozen=True):
    """The trials of a search, sorted by number, and their metrics."""

    trials: Sequence[Trial]
    #: The metrics. The first one is the objective, and its value is `Trial.value`.
    metrics: tuple[Metric, ...]
    #: Numbers of the best trials. With several objectives, they are the Pareto front.
    best: Set[int]
    #: The trial whose curve is shown.
    selected_trial: Trial | None = None
    #: The column by which the table is sorted, with the prefix "-" for descending order. "" = the best trials
    #: first.
    order: str = ""
    #: Names of trials by number. Without a name, a trial is shown as "trial" and its number.
    names: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def objective(self) -> Metric:
        return self.metrics[0]

    def name_of(self, trial: Trial) -> str:
        return self.names.get(trial.number, f"trial {trial.number}")


class Axis(Struct, frozen=True):
    """One axis of a chart."""

    name: str
    #: Horizontal position of the axis.
    x: float
    #: Texts at the ends of the axis.
    low: str
    high: str


class Line(Struct, frozen=True):
    """One trial in the parallel coordinates."""

    number: int
    #: Points of the line, as `x,y x,y …`.
    points: str
    is_best: bool
    #: Quintile of the objective's value, from 0 (lowest) to 4.
    fifth: int
    title: str


class Dot(Struct, frozen=True):
    """One trial in a chart of two quantities."""

    x: float
    y: float
    number: int
    #: Whether no other trial is better in both quantities.
    is_front: bool
    was_stopped: bool
    title: str


class Front(Struct, frozen=True):
    """The chart of two quantities. It has no dots if there are fewer than two values."""

    dots: tuple[Dot, ...] = ()
    #: The horizontal axis and the vertical axis.
    axes: tuple[Axis, ...] = ()


def parts(search: Search) -> dict[str, Part]:
    """Return the charts and the table, by the ID of their HTML element."""
    shown = [trial for trial in search.trials if _finite(trial.value)][-_MAX_TRIALS:]
    values = {trial.number: float(trial.value or 0.0) for trial in shown}
    objective = objective_data(values, search.objective.name, search.objective.is_maximized)
    axes, lines = parallel(shown, search)
    plots = slices(shown, search)
    names, first = parameters_of(search.trials), plots[0][0] if plots else ""
    return {
        "objective": Part("_trials_objective.html", {"data": objective}),
        "parallel": Part("_trials_parallel.html", {"axes": axes, "lines": lines}),
        "front": Part("_trials_front.html", {"front": front(shown, search)}),
        "slices": Part("_trials_slices.html", {"slices": plots}),
        "outlook": Part("_trials_outlook.html", {"names": names, "first": first}),
        "curve": Part("_trials_curve.html", {"chosen": search.selected_trial, "curve": _curve(search)}),
        "table": Part(
            "_trials_table.html",
            {
                "search": search,
                "trials": in_order(search)[:_MAX_TRIALS],
                "names": names,
                "has_jobs": any(trial.job for trial in search.trials),
            },
        ),
    }


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _curve(search: Search) -> str:
    chosen = search.selected_trial
    if chosen is None or not chosen.curve:
        return ""
    steps, values = [step for step, _ in chosen.curve], [value for _, value in chosen.curve]
    return json.dumps({"at": steps, "lines": [[search.objective.name, values]], "points": True})


def in_order(search: Search) -> list[Trial]:
    """Return the trials in the order of the table. Trials without a value in the sort column come last."""
    kind, _, name = search.order.removeprefix("-").partition(":")
    descends = search.order.startswith("-") if kind else bool(search.objective.is_maximized)

    def key(trial: Trial) -> Any:
        values: Mapping[str, Any] = trial.parameters if kind == "parameter" else trial.metrics
        value = trial.number if kind == "trial" else values.get(name) if name else trial.value
        return value if _finite(value) else None if value is None else str(value)

    trials = [(key(trial), trial) for trial in search.trials]
    known = [pair for pair in trials if pair[0] is not None]
    are_numbers = not any(isinstance(value, str) for value, _ in known)
    known.sort(key=lambda pair: pair[0] if are_numbers else str(pair[0]), reverse=descends)
    return [trial for _, trial in known] + [trial for value, trial in trials if value is None]


_MIN_TRIALS: Final = 10
"""Minimum number of trials with a result that parameter importance requires."""
_MAX_GROUPS: Final = 6


def importance(shown: Sequence[Trial]) -> dict[str, float]:
    """Return the importance of each parameter, from 0 to 1, largest first.

    The importance of a parameter is the fraction of the ranking by objective that it explains in addition to
    more important parameters. The fractions are not computed independently, because searches vary parameters
    together. Return {} for fewer than ten trials, or if all objectives are equal.
    """
    count = len(shown)
    if count < _MIN_TRIALS or len({trial.value for trial in shown}) == 1:
        return {}
    places = sorted(range(count), key=lambda row: float(shown[row].value or 0.0))
    left = [place - (count - 1) / 2 for place in sorted(range(count), key=places.__getitem__)]
    total = sum(rank**2 for rank in left)
    grouped = {name: _groups([t.parameters.get(name) for t in shown]) for name in parameters_of(shown)}
    shares = {name: 0.0 for name, groups in grouped.items() if 1 < len(set(groups)) < count}
    for _ in shares:
        fits = {name: _explained_variance(left, grouped[name]) for name, share in shares.items() if not share}
        name = max(fits, key=lambda name: fits[name][0])
        explained, means = fits[name]
        if explained < total / 1000:
            break
        shares[name] = explained / total
        left = [rank - mean for rank, mean in zip(left, means, strict=True)]
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _explained_variance(ranks: Sequence[float], groups: Sequence[object]) -> tuple[float, list[float]]:
    """Return two results: the part of the ranks' sum of squares that the groups explain beyond chance, and
    for each value the mean rank of its group."""
    from statistics import fmean

    members: dict[object, list[float]] = {}
    for rank, group in zip(ranks, groups, strict=True):
        members.setdefault(group, []).append(rank)
    middles = {group: fmean(of) for group, of in members.items()}
    means = [middles[group] for group in groups]
    between = sum(mean**2 for mean in means)
    within = sum(rank**2 for rank in ranks) - between
    return between - (len(members) - 1) * within / (len(ranks) - len(members)), means


def _groups(values: Sequence[Any]) -> list[object]:
    """Return the group of each value. For a text it is the text itself. Numbers are divided into at most six
    groups."""
    if not all(map(_finite, values)):
        return [str(value) for value in values]
    ordered = sorted(values)
    return [bisect_left(ordered, value) * _MAX_GROUPS // len(values) for value in values]


_SLICES: Final = 12


def slices(shown: Sequence[Trial], search: Search) -> list[tuple[str, float | None, Front]]:
    """Return (name, importance or None, chart of the objective) for each parameter, most important first."""
    weights = importance(shown)
    names = [*weights, *(name for name in parameters_of(shown) if name not in weights)]
    objective = search.objective.name, [float(trial.value or 0.0) for trial in shown]
    best = [trial.number in search.best for trial in shown]
    if len(shown) < 2:
        return []
    drawn: list[tuple[str, float | None, Front]] = []
    for name in names[:_SLICES]:
        values = name, [trial.parameters.get(name) for trial in shown]
        drawn.append((name, weights.get(name), _plot(shown, search, values, objective, best)))
    return drawn


def _plot(
    trials: Sequence[Trial],
    search: Search,
    across: tuple[str, Sequence[Any]],
    up: tuple[str, Sequence[float]],
    front: Sequence[bool],
) -> Front:
    """Return a chart of trials by two named quantities. `front`: for each trial, whether it is marked."""
    (x_name, xs), (y_name, ys) = across, up
    x_low, x_high, x_places = _scale(xs)
    y_low, y_high, y_places = _scale(ys)
    rows = zip(trials, xs, ys, x_places, y_places, front, strict=True)
    dots = [
        Dot(
            round(40 + x * (_WIDTH - 80), 1),
            round(_TOP + (1 - (y or 0)) * (HEIGHT - 2 * _TOP), 1),
            trial.number,
            is_front,
            trial.stopped_early,
            f"{search.name_of(trial)}: {x_name} {number_text(a)}, {y_name} {number_text(b)}",
        )
        for trial, a, b, x, y, is_front in rows
        if x is not None
    ]
    return Front(
        tuple(sorted(dots, key=lambda dot: dot.is_front)),
        (Axis(x_name, 0, x_low, x_high), Axis(y_name, 0, y_low, y_high)),
    )


def parameters_of(trials: Sequence[Trial]) -> list[str]:
    """Return the names of all parameters, in the order in which the trials contain them."""
    return list(dict.fromkeys(name for trial in trials for name in trial.parameters))


def parallel(shown: Sequence[Trial], search: Search) -> tuple[list[Axis], list[Line]]:
    """Return the axes and lines of the parallel coordinates.

    There is one axis per parameter, then one per metric, with the objective last. The result is empty for
    fewer than two trials or axes.
    """
    names = parameters_of(shown)
    columns: list[tuple[str, list[Any]]] = [
        (name, [trial.parameters.get(name) for trial in shown]) for name in names
    ]
    columns += [
        (metric.name, [trial.metrics.get(metric.name) for trial in shown]) for metric in search.metrics[:0:-1]
    ]
    columns.append((search.objective.name, [trial.value for trial in shown]))
    if len(shown) < 2 or len(columns) < 2:
        return [], []
    axes: list[Axis] = []
    places: list[list[float | None]] = []
    for position, (name, values) in enumerate(columns):
        x = round(40 + position * (_WIDTH - 80) / (len(columns) - 1), 1)
        low, high, scaled = _scale(values)
        axes.append(Axis(name, x, low, high))
        places.append(scaled)
    ordered = sorted(float(trial.value or 0.0) for trial in shown)
    lines = [
        Line(
            trial.number,
            " ".join(
                f"{axis.x},{_TOP + (1 - place) * (HEIGHT - 2 * _TOP):.1f}"
                for axis, scaled in zip(axes, places, strict=True)
                if (place := scaled[row]) is not None
            ),
            trial.number in search.best,
            min(4, bisect_left(ordered, float(trial.value or 0.0)) * 5 // len(ordered)),
            f"{search.name_of(trial)}: {number_text(trial.value)}",
        )
        for row, trial in enumerate(shown)
    ]
    return axes, sorted(lines, key=lambda line: line.is_best)


def _scale(values: Sequence[Any]) -> tuple[str, str, list[float | None]]:
    """Return the texts at the ends of an axis, and for each value its position from 0 to 1, or None if the
    value is missing. Unless all values are finite numbers, the positions are in the order of the sorted
    texts."""
    numbers = [float(value) for value in values if _finite(value)]
    if len(numbers) < sum(value is not None for value in values):
        words = sorted({str(value) for value in values if value is not None})
        size = max(1, len(words) - 1)
        return (
            words[0],
            words[-1],
            [None if value is None else words.index(str(value)) / size for value in values],
        )
    if not numbers:
        return "", "", [None for _ in values]
    low, high = min(numbers), max(numbers)
    is_log = fits_log(low, high)

    def place(value: float) -> float:
        if high / 2 == low / 2:
            return 0.5
        if is_log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        # Halve the values, because the difference of two doubles may overflow.
        return (value / 2 - low / 2) / (high / 2 - low / 2)

    return (
        _end_text(low),
        _end_text(high),
        [place(float(value)) if _finite(value) else None for value in values],
    )


def _end_text(value: float) -> str:
    """Return a number as a short text, because charts may have many axes."""
    return number_text(value) if value.is_integer() else f"{value:.3g}"


def front(shown: Sequence[Trial], search: Search) -> Front:
    """Return the chart of the first two metrics, with the Pareto front marked. If the goal of the second
    metric is unknown, assume the opposite of the first goal, as for accuracy and cost."""
    if len(search.metrics) < 2:
        return Front()
    first, second = search.metrics[:2]
    points = [
        (trial, float(trial.value or 0.0), float(trial.metrics[second.name]))
        for trial in shown
        if _finite(trial.metrics.get(second.name))
    ]
    if len(points) < 2:
        return Front()
    across = 1 if first.is_maximized else -1
    upwards = -across if second.is_maximized is None else 1 if second.is_maximized else -1

    def beaten(a: float, b: float) -> bool:
        return any(
            across * x >= across * a and upwards * y >= upwards * b and (x, y) != (a, b) for _, x, y in points
        )

    trials, xs, ys = zip(*points, strict=True)
    marks = [not beaten(a, b) for a, b in zip(xs, ys, strict=True)]
    return _plot(trials, search, (first.name, xs), (second.name, ys), marks)


async def trials(visit: Visit) -> View:
    """`/jobs/J/trials`: charts of the objective, its parameters and two metrics, and the table of trials.
    Raises CallRejected if the job is not a tuning job."""
    job = await describe(visit)
    if job.tuning is UNSET or not job.tuning:
        raise CallRejected(
            StatusCode.NOT_FOUND, f"{job.name} is not a tuning job. Open the job's overview instead."
        )
    search = _search(job, job.tuning, visit.query("trial"), visit.query("sort"))
    return tab_view(visit, job, "trials", {}, parts(search))


def _search(job: JobDescription, tuning: Tuning, chosen: str, order: str) -> Search:
    trials = job.trials or ()
    other_metrics = sorted({name for trial in trials for name in trial.metrics} - {tuning.metric})
    return Search(
        trials,
        (Metric(tuning.metric, tuning.goal == "MAXIMIZE"), *(Metric(name) for name in other_metrics)),
        frozenset({tuning.best} - {0}),
        next((trial for trial in trials if str(trial.number) == chosen), None),
        order,
    )
