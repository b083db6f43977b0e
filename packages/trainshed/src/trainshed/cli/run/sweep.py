"""Makes a tuning job of a custom job, from `--tune` and what goes with it. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WHOLE = re.compile(r"-?\d+")
_EXAMPLES = "lr=1e-4..1e-1:log, layers=1..8, batch=16,32,64 or optimizer=adam,sgd"


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is searched for."""

    #: `NAME=LOW..HIGH`, `NAME=LOW..HIGH:log` or `NAME=A,B,C`.
    parameters: Sequence[str]
    #: The metric as the program reports or prints it.
    metric: str
    maximize: bool
    trials: int
    #: How many of them run at once.
    parallel: int


def tuning_job(job: dict[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Return the body of `hyperparameterTuningJobs.create` for trials of the custom job. Raises
    click.UsageError, which names each parameter that cannot be read."""
    parameters: list[dict[str, Any]] = []
    wrong: list[str] = []
    for text in sweep.parameters:
        try:
            parameters.append(parameter(text))
        except ValueError as fault:
            wrong.append(f"--tune {text}: {fault}")
    names = [spec["parameterId"] for spec in parameters]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    wrong += [f"--tune {name}: it is tuned twice" for name in twice]
    if wrong:
        raise click.UsageError(f"{'; '.join(wrong)}. Write {_EXAMPLES}.")
    about = {key: value for key, value in job.items() if key != "jobSpec"}
    goal = "MAXIMIZE" if sweep.maximize else "MINIMIZE"
    return {
        **about,
        "studySpec": {
            "metrics": [{"metricId": sweep.metric, "goal": goal}],
            "parameters": parameters,
        },
        "maxTrialCount": sweep.trials,
        "parallelTrialCount": min(sweep.parallel, sweep.trials),
        "trialJobSpec": job["jobSpec"],
    }


def parameter(text: str) -> dict[str, Any]:
    """Return the parameter that a value of `--tune` means. Raises ValueError."""
    name, _, values = text.partition("=")
    if not _NAME.fullmatch(name) or not values:
        raise ValueError("this is not a name, = and values")
    low, is_range, rest = values.partition("..")
    if is_range:
        high = rest.removesuffix(":log")
        return {"parameterId": name, **_span(low, high, is_log=high != rest)}
    choices = [choice.strip() for choice in values.split(",")]
    if len(choices) < 2 or not all(choices):
        raise ValueError("this is no range, and not several values with commas between them")
    numbers = [_number(choice) for choice in choices]
    if None not in numbers:
        ascending = sorted({number for number in numbers if number is not None})
        return {"parameterId": name, "discreteValueSpec": {"values": ascending}}
    return {"parameterId": name, "categoricalValueSpec": {"values": choices}}


def _span(low: str, high: str, *, is_log: bool) -> dict[str, Any]:
    first, last = _number(low), _number(high)
    if first is None or last is None:
        raise ValueError(f"{low if first is None else high} is not a number")
    if first >= last:
        raise ValueError(f"{low} is not below {high}")
    if is_log and first <= 0:
        raise ValueError("a range on a log scale begins above 0")
    scale = {"scaleType": "UNIT_LOG_SCALE" if is_log else "UNIT_LINEAR_SCALE"}
    if _WHOLE.fullmatch(low) and _WHOLE.fullmatch(high):
        return {"integerValueSpec": {"minValue": low, "maxValue": high}, **scale}
    return {"doubleValueSpec": {"minValue": first, "maxValue": last}, **scale}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
