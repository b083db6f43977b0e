"""Studies and their trials as the public Vertex API gives them, with types. Pure.

A trial becomes the same `TrialView` as one of a tuning job, so that both are shown alike; of several metrics the first is
the objective's column, the others stand among the notes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.cli.moments import parse_moment
from trainshed.cli.tuning_views import TrialView, assignment, shown
from trainshed.core.study.spec import Algorithm, Goal, Value
from trainshed.core.study.studies import StudyState
from trainshed.core.study.trials import TrialState


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study. `metrics`: (id, goal)."""

    id: str
    name: str
    display_name: str
    state: StudyState
    inactive_reason: str
    created: int
    algorithm: str
    metrics: tuple[tuple[str, Goal], ...]

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "StudyView":
        """Read a Study in public JSON."""
        spec: Mapping[str, Any] = found["studySpec"]
        algorithm = spec.get("algorithm", "")
        return StudyView(
            id=found["name"].rpartition("/")[2],
            name=found["name"],
            display_name=found["displayName"],
            state=StudyState(found["state"]),
            inactive_reason=found.get("inactiveReason", ""),
            created=parse_moment(found["createTime"]),
            algorithm=(
                algorithm if algorithm in list(Algorithm) else Algorithm.DEFAULT.value
            ).lower(),
            metrics=tuple((each["metricId"], Goal(each["goal"])) for each in spec["metrics"]),
        )

    @property
    def aims(self) -> str:
        """`maximize accuracy, minimize size`."""
        return ", ".join(f"{goal.value.lower()} {metric}" for metric, goal in self.metrics)


@dataclass(frozen=True, slots=True)
class StudyRows:
    """What is shown of a study's trials. `best`: a line for each optimal one."""

    trials: tuple[TrialView, ...]
    counts: str
    best: tuple[str, ...]


def study_table_rows(
    study: StudyView, trials: Sequence[Mapping[str, Any]], optimal: Sequence[int]
) -> StudyRows:
    """`trials`: in public JSON. `optimal`: numbers of the optimal ones."""
    views = tuple(_trial(study, found) for found in trials)
    over = [view for view in views if view.state.is_over]
    infeasible = sum(view.state is TrialState.INFEASIBLE for view in over)
    active = sum(view.state in (TrialState.ACTIVE, TrialState.STOPPING) for view in views)
    parts = [f"{len(views)}", f"{len(over)} done"]
    parts += [f"{active} active"] if active else []
    parts += [f"{infeasible} without a result"] if infeasible else []
    finals = {int(found["id"]): _final(found) for found in trials}
    lines = tuple(
        f"trial {view.number}: {_measured(finals[view.number])}  {assignment(view.parameters)}"
        for view in views
        if view.number in optimal
    )
    return StudyRows(views, ", ".join(parts), lines)


def _trial(study: StudyView, found: Mapping[str, Any]) -> TrialView:
    metric = study.metrics[0][0]
    final = _final(found)
    curve: list[tuple[int, float]] = [
        (int(each.get("stepCount", 0)), value)
        for each in found.get("measurements", ())
        if (value := _metrics(each).get(metric)) is not None
    ]
    step, reached = curve[-1] if curve else (0, None)
    value = final.get(metric)
    if value is not None:
        step, reached = int(found["finalMeasurement"].get("stepCount", 0)), value
    state = TrialState(found["state"])
    others = {name: each for name, each in final.items() if name != metric}
    return TrialView(
        number=int(found["id"]),
        state=state,
        parameters=tuple(
            (each["parameterId"], _value(each)) for each in found.get("parameters", ())
        ),
        value=value,
        reached=reached,
        step=step,
        # The public field holds when it was made; nobody evaluates it yet.
        started=0 if state is TrialState.REQUESTED else parse_moment(found.get("startTime", "")),
        ended=parse_moment(found.get("endTime", "")),
        reason=found.get("infeasibleReason", ""),
        more=_measured(others),
        curve=tuple(each for _, each in curve),
    )


def _value(parameter: Mapping[str, Any]) -> Value:
    value: Value = parameter.get("value", 0)
    return value


def _final(found: Mapping[str, Any]) -> dict[str, float]:
    return _metrics(found.get("finalMeasurement", {}))


def _metrics(measurement: Mapping[str, Any]) -> dict[str, float]:
    return {each["metricId"]: each.get("value", 0.0) for each in measurement.get("metrics", ())}


def _measured(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())
