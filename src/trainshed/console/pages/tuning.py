"""A search for hyperparameters: its trials as charts and as a table."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import UNSET

from trainshed.console.pages.job import FINAL, describe, head
from trainshed.console.rendering import number_text
from trainshed.console.visits import Part, View, Visit
from trainshed.core.names import JobUid
from trainshed.wire.status import Refused, StatusCode
from trainshed.wire.trainshed_v1.jobs import Trial, Tuning

HEIGHT: Final = 260.0
_TOP: Final = 10.0
_WIDTH: Final = 1000.0
_MOST: Final = 400
"""Trials that are drawn; of more the best and the newest."""
_FAR: Final = 50
"""From this ratio on an axis of positive numbers is logarithmic."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the parallel coordinates."""

    name: str
    x: float
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Line:
    """One trial across all axes."""

    number: int
    #: `x,y x,y …`
    points: str
    is_best: bool
    title: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One trial between two metrics."""

    x: float
    y: float
    number: int
    is_front: bool
    title: str


async def trials(visit: Visit) -> View:
    """`/jobs/J/trials`: the objective over the trials, parameters against it, fronts, the table."""
    job = await describe(visit)
    if job.tuning is UNSET or not job.tuning:
        raise Refused(StatusCode.NOT_FOUND, f"{job.name} is no tuning job.")
    tuning: Tuning = job.tuning
    found = list(job.trials or ())
    measured = [trial for trial in found if _finite(trial.value)]
    chosen = next((t for t in found if str(t.number) == visit.query("trial")), None)
    shown = measured[-_MOST:]
    axes, lines = parallel(shown, tuning)
    return View(
        f"Trials of {job.display_name or job.job_id}",
        "job_trials.html",
        {"job": job, "chosen": chosen, "tuning": tuning, "curve": _curve(chosen, tuning)},
        parts={
            "head": head(visit, job, "trials"),
            "objective": Part(
                "_trials_objective.html", {"data": _objective(shown, tuning), "is_empty": not shown}
            ),
            "parallel": Part("_trials_parallel.html", {"axes": axes, "lines": lines}),
            "front": Part("_trials_front.html", _front(shown, tuning)),
            "table": Part(
                "_trials_table.html",
                {
                    "job": job,
                    "tuning": tuning,
                    "trials": found[::-1][:_MOST],
                    "names": parameters_of(found),
                    "chosen": chosen.number if chosen else 0,
                },
            ),
        },
        subject=JobUid(int(job.uid)),
        lives=job.state not in FINAL,
        place="jobs",
    )


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def best_so_far(values: Sequence[float], goal: str) -> list[float]:
    """The best of each beginning."""
    better = max if goal == "MAXIMIZE" else min
    found: list[float] = []
    for value in values:
        found.append(better(found[-1], value) if found else value)
    return found


def _objective(shown: Sequence[Trial], tuning: Tuning) -> str:
    values = [float(trial.value or 0.0) for trial in shown]
    return json.dumps(
        {
            "at": [trial.number for trial in shown],
            "lines": [
                [tuning.metric, values, "points"],
                ["best so far", best_so_far(values, tuning.goal), "steps"],
            ],
            "label": "Trial",
        }
    )


def _curve(chosen: Trial | None, tuning: Tuning) -> str:
    if chosen is None or not chosen.curve:
        return ""
    steps, values = [step for step, _ in chosen.curve], [value for _, value in chosen.curve]
    return json.dumps({"at": steps, "lines": [[tuning.metric, values]], "points": True})


def parameters_of(found: Sequence[Trial]) -> list[str]:
    """Names of all parameters, in the order in which trials have them."""
    return list(dict.fromkeys(name for trial in found for name in trial.parameters))


def parallel(shown: Sequence[Trial], tuning: Tuning) -> tuple[list[Axis], list[Line]]:
    """Each parameter an axis, the objective the last one."""
    names = parameters_of(shown)
    columns: list[tuple[str, list[Any]]] = [
        (name, [trial.parameters.get(name) for trial in shown]) for name in names
    ]
    columns.append((tuning.metric, [trial.value for trial in shown]))
    if len(shown) < 2 or len(columns) < 2:
        return [], []
    axes: list[Axis] = []
    places: list[list[float | None]] = []
    for position, (name, values) in enumerate(columns):
        x = round(40 + position * (_WIDTH - 80) / (len(columns) - 1), 1)
        low, high, scaled = _scaled(values)
        axes.append(Axis(name, x, low, high))
        places.append(scaled)
    lines = [
        Line(
            trial.number,
            " ".join(
                f"{axis.x},{_TOP + (1 - place) * (HEIGHT - 2 * _TOP):.1f}"
                for axis, scaled in zip(axes, places, strict=True)
                if (place := scaled[row]) is not None
            ),
            trial.number == tuning.best,
            f"trial {trial.number}: {number_text(trial.value)}",
        )
        for row, trial in enumerate(shown)
    ]
    return axes, sorted(lines, key=lambda line: line.is_best)


def _scaled(values: Sequence[Any]) -> tuple[str, str, list[float | None]]:
    """The texts of both ends, and each value between 0 and 1."""
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
    is_wide = low > 0 and high / low >= _FAR

    def place(value: float) -> float:
        if high == low:
            return 0.5
        if is_wide:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    return (
        number_text(low),
        number_text(high),
        [place(float(value)) if _finite(value) else None for value in values],
    )


def _front(shown: Sequence[Trial], tuning: Tuning) -> dict[str, Any]:
    """Of trials that measured a second metric: which are not beaten in both. The second one is minimised if
    the first is, and the other way round, for nobody says."""
    others = sorted({name for trial in shown for name in trial.metrics} - {tuning.metric})
    if not others:
        return {"dots": (), "first": "", "second": ""}
    second = others[0]
    found = [
        (trial, float(trial.value or 0.0), float(trial.metrics[second]))
        for trial in shown
        if _finite(trial.metrics.get(second))
    ]
    if len(found) < 2:
        return {"dots": (), "first": "", "second": ""}
    sign = 1 if tuning.goal == "MAXIMIZE" else -1

    def beaten(a: float, b: float) -> bool:
        return any(
            sign * x >= sign * a and sign * y >= sign * b and (x, y) != (a, b) for _, x, y in found
        )

    _, _, across = _scaled([a for _, a, _ in found])
    _, _, upwards = _scaled([b for _, _, b in found])
    dots = [
        Dot(
            round(40 + (x or 0) * (_WIDTH - 80), 1),
            round(_TOP + (1 - (y or 0)) * (HEIGHT - 2 * _TOP), 1),
            trial.number,
            not beaten(a, b),
            f"trial {trial.number}: {number_text(a)}, {number_text(b)}",
        )
        for (trial, a, b), x, y in zip(found, across, upwards, strict=True)
    ]
    return {"dots": dots, "first": tuning.metric, "second": second}
