"""Checks a client's data about a trial against the study's specification: parameters and measurements
(spec/tuning#measurements, facts/tuning#vertex).

All errors are added to the faults of the request's sections. The results of a faulty request are not usable.
"""

import math
from collections.abc import Mapping
from typing import Any, assert_never

from msgspec.structs import replace

from trainshed.core.errors import format_list
from trainshed.core.requests import Faults, Section
from trainshed.core.study.progress import final_measurement
from trainshed.core.study.records import Measurement, Parameters, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec, Value, is_same
from trainshed.core.units import Nanos


def read_parameters(spec: StudySpec, trial: Section) -> Parameters:
    """Parse the parameters of a trial, in the order of the tree. The request must contain each active
    parameter once, and no others."""
    by_id: dict[str, Section] = {}
    for entry in trial.sections("parameters"):
        name = entry.text("parameterId")
        if name in by_id:
            entry.fault("parameterId", f"{name!r} appears twice. Set each parameter once.")
        by_id.setdefault(name, entry)
    values: list[Value | None] = []
    unclear: set[int] = set()
    settled: set[str] = set()
    for index, node in enumerate(spec.parameters):
        value = None
        if node.parent in unclear:
            # Accept the parameter without an error: its parent parameter is invalid, so it is unknown whether
            # the parameter is active.
            unclear.add(index)
            settled.add(node.id)
        elif node.parent is None or (
            (parent := values[node.parent]) is not None and any(is_same(parent, value) for value in node.when)
        ):
            settled.add(node.id)
            value = _read_value(node, by_id.get(node.id), trial)
            if value is None:
                unclear.add(index)
        values.append(value)
    _report_others(spec, by_id, settled)
    nodes = zip(spec.parameters, values, strict=True)
    return tuple((node.id, value) for node, value in nodes if value is not None)


def read_measurement(spec: StudySpec, measurement: Section, *, final: bool) -> Measurement:
    """Parse a measurement of known metrics with finite values. A final measurement contains all metrics of
    the study. A measurement with neither step nor elapsed time counts as step 0, because the public guide's
    example omits both."""
    known = [metric.id for metric in spec.metrics]
    by_metric: dict[str, float] = {}
    for entry in measurement.sections("metrics"):
        name, value = entry.text("metricId"), entry.number("value")
        if name not in known:
            entry.fault("metricId", f"{name!r} is not a metric of the study, which has {format_list(known)}.")
        elif name in by_metric:
            entry.fault("metricId", f"{name!r} appears twice. Set each metric once.")
        if not math.isfinite(value):
            entry.fault(
                "value", f"{value} is not a finite number. Complete a trial that diverged as infeasible."
            )
        by_metric.setdefault(name, value)
    missing = [name for name in known if name not in by_metric]
    if not by_metric:
        measurement.fault("metrics", f"The measurement has no metric. The study has {format_list(known)}.")
    elif final and missing:
        measurement.fault(
            "metrics",
            f"A final measurement needs every metric of the study. Missing: {format_list(missing)}.",
        )
    step, elapsed = measurement.integer("stepCount"), measurement.duration("elapsedDuration") or 0
    if step < 0:
        measurement.fault("stepCount", f"{step} is negative; steps count from 0.")
    if not 0 <= elapsed < 2**63:
        measurement.fault("elapsedDuration", "The time must be from 0 to 292 years after the start.")
    return Measurement(tuple(by_metric.items()), step, elapsed)


def _read_value(node: Parameter, entry: Section | None, trial: Section) -> Value | None:
    if entry is None:
        trial.fault("parameters", f"The parameter {node.id!r} is missing; it has {_legal(node)}.")
        return None
    raw = entry.values.get("value")
    value = _value(node, raw)
    if value is None:
        content = repr(raw) if isinstance(raw, str | float | int) else "Neither a number nor a text"
        entry.fault("value", f"{content} is not a value of {node.id!r}, which has {_legal(node)}.")
    return value


def _value(node: Parameter, raw: object) -> Value | None:
    """Return the parameter's value in its specified type, or None if it is not allowed."""
    if node.type is ParameterType.CATEGORICAL:
        return raw if isinstance(raw, str) and raw in node.categories else None
    if isinstance(raw, bool) or not isinstance(raw, float | int) or not math.isfinite(raw):
        return None
    match node.type:
        case ParameterType.DOUBLE:
            return float(raw) if node.low <= raw <= node.high else None
        case ParameterType.INTEGER:
            whole = int(raw)
            return whole if whole == raw and node.low <= whole <= node.high else None
        case ParameterType.DISCRETE:
            return next((value for value in node.values if is_same(value, raw)), None)
        case _:
            assert_never(node.type)


def _report_others(spec: StudySpec, by_name: Mapping[str, Section], settled: set[str]) -> None:
    """Report parameters that do not belong to the study, or are not active in combination with the other
    values."""
    for name, entry in by_name.items():
        conditions = [
            f"{spec.parameters[node.parent].id} = {format_list(map(_format_value, node.when))}"
            for node in spec.parameters
            if node.id == name and node.parent is not None
        ]
        if name not in settled and conditions:
            text = f"{name!r} is not active: it requires {' or '.join(conditions)}."
            entry.fault("parameterId", text)
        elif name not in settled:
            ids = format_list(node.id for node in spec.parameters)
            entry.fault("parameterId", f"{name!r} is not a parameter of the study, which has {ids}.")


def _legal(node: Parameter) -> str:
    """Return the allowed values of a parameter as text."""
    match node.type:
        case ParameterType.DOUBLE:
            return f"numbers from {_format_value(node.low)} to {_format_value(node.high)}"
        case ParameterType.INTEGER:
            return f"whole numbers from {_format_value(node.low)} to {_format_value(node.high)}"
        case ParameterType.DISCRETE:
            return f"the values {format_list(map(_format_value, node.values))}"
        case ParameterType.CATEGORICAL:
            return f"the values {format_list(node.categories)}"


def _format_value(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)


def parse_trial(
    spec: StudySpec, study: StudyUid, public: Mapping[str, Any], now: Nanos
) -> tuple[Trial, tuple[Measurement, ...]]:
    """Parse the trial of a request in public JSON. Return the trial without a number, and its measurements,
    ascending by (step, elapsed) without duplicates.

    A final measurement makes the trial SUCCEEDED, unless its state is INFEASIBLE. A trial without an
    evaluation is REQUESTED and has no client. The next client that requests suggestions receives it. Raise
    InvalidRequest with all violations.
    """
    sent = Section(public, "trial", Faults())
    parameters = read_parameters(spec, sent)
    read = [read_measurement(spec, item, final=False) for item in sent.sections("measurements")]
    by_place = {(measurement.step, measurement.elapsed): measurement for measurement in read}
    measurements = tuple(by_place[place] for place in sorted(by_place))
    trial = Trial(study, 0, TrialState.REQUESTED, parameters, created=now)
    is_infeasible = sent.enum("state") == TrialState.INFEASIBLE
    final = None
    if not is_infeasible and sent.has("finalMeasurement"):
        final = read_measurement(spec, sent.section("finalMeasurement"), final=True)
    elif sent.enum("state") == TrialState.SUCCEEDED:
        final = final_measurement(spec, measurements)
        if final is None:
            sent.fault(
                "finalMeasurement",
                "A trial that SUCCEEDED needs a final measurement. Send it, or a measurement "
                "with every metric of the study.",
            )
    sent.faults.refuse()
    if final is None and not is_infeasible:
        return trial, measurements
    over = replace(
        trial,
        state=TrialState.INFEASIBLE if is_infeasible else TrialState.SUCCEEDED,
        started=now,
        ended=now,
        client=sent.text("clientId"),
        final=final,
        infeasible_reason=sent.text("infeasibleReason") if is_infeasible else "",
    )
    return over, measurements
