"""The pages of models and of experiments."""

import json
import math
from collections.abc import Sequence
from typing import Final

from trainshed.console.pages.searches import Axis, Line, Metric, Search, parallel
from trainshed.console.pages.vertex import place_of
from trainshed.console.visits import Part, View, Visit
from trainshed.wire.trainshed_v1.experiments import (
    Curve,
    ExperimentList,
    ExperimentRun,
    ExperimentRuns,
)
from trainshed.wire.trainshed_v1.jobs import Trial
from trainshed.wire.trainshed_v1.models import ModelDescription, ModelList

_PAGE: Final = 100
"""Runs on one page of an experiment."""
_CURVES: Final = 12
"""Maximum charts on that page."""


async def models(visit: Visit) -> View:
    """`/models`: the models of the project."""
    project, region = place_of(visit)
    found = await visit.get(ModelList, "models", project=project, region=region)
    return View("Models", "models.html", {"found": found}, place="models")


async def model(visit: Visit) -> View:
    """`/models/M`: the model's versions, and what each was made from."""
    project, region = place_of(visit)
    path = f"models/{visit.quoted('model')}"
    found = await visit.get(ModelDescription, path, project=project, region=region)
    title = found.versions[0].display_name if found.versions else found.model_id
    return View(title, "model.html", {"found": found, "title": title}, place="models")


async def experiments(visit: Visit) -> View:
    """`/experiments`: the experiments of the project."""
    project, region = place_of(visit)
    found = await visit.get(
        ExperimentList,
        "experiments",
        project=project,
        region=region,
        pageToken=visit.query("page"),
    )
    return View(
        "Experiments",
        "experiments.html",
        {
            "found": found,
            "following": visit.next_page(found.next_page_token),
        },
        place="experiments",
    )


async def experiment(visit: Visit) -> View:
    """`/experiments/E[?run=A&run=B]`: the experiment's runs, or those named, compared, with their curves."""
    project, region = place_of(visit)
    path = f"experiments/{visit.quoted('experiment')}"
    found = await visit.get(
        ExperimentRuns,
        path,
        project=project,
        region=region,
        curves="true",
        limit=str(_PAGE),
        pageToken=visit.query("page"),
    )
    wanted = frozenset(visit.request.values.get("run", ()))
    shown = [run for run in found.runs if not wanted or run.name in wanted]
    parameters = list(dict.fromkeys(n for run in shown for n in run.parameters))
    alike = {n for n in parameters if len({run.parameters.get(n) for run in shown}) == 1}
    metrics = list(dict.fromkeys(n for run in shown for n in run.metrics))
    axes, lines = compared(shown, [n for n in parameters if n not in alike], metrics)
    return View(
        found.experiment.display_name or found.experiment.name,
        "experiment.html",
        {
            "found": found,
            "runs": shown,
            "chosen": wanted,
            # Parameters that differ come first: runs are compared for them.
            "parameters": sorted(parameters, key=lambda name: name in alike),
            "alike": alike if len(shown) > 1 else frozenset[str](),
            "metrics": metrics,
            "curves": curves_of(shown),
            "following": visit.next_page(found.next_page_token),
        },
        parts={"parallel": Part("_trials_parallel.html", {"axes": axes, "lines": lines})},
        place="experiments",
    )


def compared(
    runs: Sequence[ExperimentRun], parameters: Sequence[str], metrics: Sequence[str]
) -> tuple[list[Axis], list[Line]]:
    """Return parallel coordinates of the runs: the given parameters, and the first metric as the objective.
    Empty if fewer than two runs have measured it, or if no parameter is given."""
    found: list[Trial] = []
    for number, run in enumerate(runs, 1):
        measured = {
            name: float(value)
            for name, value in run.metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        if metrics and metrics[0] in measured:
            given = {name: run.parameters.get(name) for name in parameters}
            found.append(Trial(number=number, parameters=given, value=measured[metrics[0]]))
    names = {number: run.name for number, run in enumerate(runs, 1)}
    if not found:
        return [], []
    return parallel(found, Search(found, (Metric(metrics[0]),), frozenset(), names=names))


def curves_of(runs: Sequence[ExperimentRun]) -> list[tuple[str, str]]:
    """Return (name, data) of the first `_CURVES` time series. The data are JSON for a chart: the steps, and
    each run's values at them."""
    by_name: dict[str, list[tuple[str, Curve]]] = {}
    for run in runs:
        for curve in run.curves:
            by_name.setdefault(curve.name, []).append((run.name, curve))
    charts: list[tuple[str, str]] = []
    for name, drawn in list(by_name.items())[:_CURVES]:
        steps = sorted({step for _, curve in drawn for step in curve.steps})
        lines = [
            [run, [dict(zip(curve.steps, curve.values, strict=True)).get(step) for step in steps]]
            for run, curve in drawn
        ]
        charts.append((name, json.dumps({"at": steps, "lines": lines, "label": "Step"})))
    return charts
