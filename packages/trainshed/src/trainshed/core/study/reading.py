"""Checks what a client says of a trial against the study's specification: parameters and measurements
(spec/tuning#measurements, facts/tuning#vertex).

Both study APIs bring their messages into the neutral shapes here. Everything wrong is reported at once, on
the field path that the caller used.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import Struct

from trainshed.core.requests import Faults
from trainshed.core.study.progress import final_measurement
from trainshed.core.study.records import Measurement, Parameters, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec, Value, is_same
from trainshed.core.units import Nanos


class GivenParameter(Struct, frozen=True):
    """One parameter as sent."""

    #: The path of the entry.
    path: str
    id: str
    #: None = neither a number nor a text.
    value: float | int | str | None


class GivenMetric(Struct, frozen=True):
    """One metric as sent. `path`: of the entry."""

    path: str
    id: str
    value: float


class GivenMeasurement(Struct, frozen=True):
    """One measurement as sent. `elapsed`: nanoseconds."""

    path: str
    metrics: tuple[GivenMetric, ...]
    step: int
    elapsed: int


def read_parameters(
    spec: StudySpec, entries: Sequence[GivenParameter], faults: Faults, *, at: str
) -> Parameters:
    """Return the parameters of a trial in the order of the tree: each active one once, and no others.

    Every fault is reported to `faults` (a missing parameter on `at`), and then the result is not to be used.
    """
    by_id: dict[str, GivenParameter] = {}
    for entry in entries:
        if entry.id in by_id:
            faults.add(
                f"{entry.path}.parameter_id",
                f"{entry.id!r} is given twice; give each parameter once.",
            )
        by_id.setdefault(entry.id, entry)
    values: list[Value | None] = []
    unclear: set[int] = set()
    settled: set[str] = set()
    for index, node in enumerate(spec.parameters):
        value = None
        if node.parent in unclear:
            # The parent is wrong: it is not known whether this one is active, so nothing is reported.
            unclear.add(index)
            settled.add(node.id)
        elif _is_active(node, values):
            settled.add(node.id)
            value = _read_value(node, by_id.get(node.id), faults, at)
            if value is None:
                unclear.add(index)
        values.append(value)
    _report_others(spec, by_id, settled, faults)
    nodes = zip(spec.parameters, values, strict=True)
    return tuple((node.id, value) for node, value in nodes if value is not None)


def read_measurement(
    spec: StudySpec, sent: GivenMeasurement, faults: Faults, *, final: bool
) -> Measurement:
    """Return a measurement of known metrics with finite values; a final one has all metrics of the study.

    One with neither step nor elapsed time counts as made at step 0: the public guide's own example adds such
    measurements. Every fault is reported to `faults`, and then the result is not to be used.
    """
    known = {metric.id: None for metric in spec.metrics}
    by_metric: dict[str, float] = {}
    for metric in sent.metrics:
        field = f"{metric.path}.metric_id"
        if metric.id not in known:
            faults.add(
                field, f"{metric.id!r} is no metric of the study, which has {_listed(known)}."
            )
        elif metric.id in by_metric:
            faults.add(field, f"{metric.id!r} is given twice; give each metric once.")
        if not math.isfinite(metric.value):
            faults.add(
                f"{metric.path}.value",
                f"{metric.value} is not a finite number; complete a trial that diverged as infeasible.",
            )
        by_metric.setdefault(metric.id, metric.value)
    missing = {name: None for name in known if name not in by_metric}
    if not sent.metrics:
        faults.add(f"{sent.path}.metrics", f"No metric is given; the study has {_listed(known)}.")
    elif final and missing:
        faults.add(
            f"{sent.path}.metrics",
            f"A final measurement has every metric of the study; missing: {_listed(missing)}.",
        )
    if sent.step < 0:
        faults.add(f"{sent.path}.step_count", f"{sent.step} is negative; steps count from 0.")
    if sent.elapsed < 0:
        faults.add(
            f"{sent.path}.elapsed_duration", "The time is negative; it counts from the start."
        )
    return Measurement(tuple(by_metric.items()), sent.step, sent.elapsed)


def _is_active(node: Parameter, values: Sequence[Value | None]) -> bool:
    if node.parent < 0:
        return True
    parent = values[node.parent]
    return parent is not None and any(is_same(parent, value) for value in node.when)


def _read_value(
    node: Parameter, entry: GivenParameter | None, faults: Faults, at: str
) -> Value | None:
    if entry is None:
        faults.add(at, f"The parameter {node.id!r} is missing; it has {_legal(node)}.")
        return None
    value = _value(node, entry.value)
    if value is None:
        content = "Neither a number nor a text" if entry.value is None else repr(entry.value)
        faults.add(
            f"{entry.path}.value",
            f"{content} is no value of {node.id!r}, which has {_legal(node)}.",
        )
    return value


def _value(node: Parameter, raw: float | int | str | None) -> Value | None:
    """Return the legal value that is meant, in the type that the specification gives; None if there is
    none."""
    if node.type is ParameterType.CATEGORICAL:
        return raw if isinstance(raw, str) and raw in node.categories else None
    if raw is None or isinstance(raw, str) or not math.isfinite(raw):
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


def _report_others(
    spec: StudySpec, by_name: Mapping[str, GivenParameter], settled: set[str], faults: Faults
) -> None:
    """Report the parameters that are not of the study, or not active with the others that were given."""
    ids = {node.id: None for node in spec.parameters}
    for name, entry in by_name.items():
        if name in settled:
            continue
        if name not in ids:
            why = f"{name!r} is no parameter of the study, which has {_listed(ids)}."
        else:
            conditions = (
                f"{spec.parameters[node.parent].id} = {_listed(dict.fromkeys(map(_shown, node.when)))}"
                for node in spec.parameters
                if node.id == name
            )
            why = f"{name!r} is not active here: it asks for {' or '.join(conditions)}."
        faults.add(f"{entry.path}.parameter_id", why)


def _legal(node: Parameter) -> str:
    """Return the values that a parameter may take, in words."""
    match node.type:
        case ParameterType.DOUBLE:
            return f"numbers from {_shown(node.low)} to {_shown(node.high)}"
        case ParameterType.INTEGER:
            return f"whole numbers from {_shown(node.low)} to {_shown(node.high)}"
        case ParameterType.DISCRETE:
            return f"the values {_listed(dict.fromkeys(map(_shown, node.values)))}"
        case ParameterType.CATEGORICAL:
            return f"the values {_listed(dict.fromkeys(node.categories))}"


def _shown(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)


def _listed(names: Mapping[str, None], most: int = 20) -> str:
    """Return the first of the names, so that a message stays readable."""
    shown = list(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


class Claim(enum.StrEnum):
    """What the client says of its trial. WANTED: somebody should evaluate it. SUCCEEDED, INFEASIBLE: it was
    evaluated."""

    WANTED = "WANTED"
    SUCCEEDED = "SUCCEEDED"
    INFEASIBLE = "INFEASIBLE"


class GivenTrial(Struct, frozen=True):
    """A trial as sent."""

    #: The path of the trial in the request.
    path: str
    parameters: Sequence[GivenParameter]
    measurements: Sequence[GivenMeasurement] = ()
    #: A final measurement makes the trial SUCCEEDED, whatever the claim, unless that is INFEASIBLE.
    final: GivenMeasurement | None = None
    claim: Claim = Claim.WANTED
    #: Who evaluates it; "" = nobody in particular.
    client: str = ""
    #: Why it is infeasible.
    reason: str = ""


def parse_trial(
    spec: StudySpec, study: StudyUid, sent: GivenTrial, now: Nanos
) -> tuple[Trial, tuple[Measurement, ...]]:
    """Return the trial, without a number, and its measurements, ascending by (step, elapsed) and each pair
    once.

    One that is only wanted is REQUESTED, belongs to nobody, and is given to the next client that asks for
    suggestions. Raise InvalidRequest, which lists every violation, if there is one.
    """
    faults = Faults()
    parameters = read_parameters(spec, sent.parameters, faults, at=f"{sent.path}.parameters")
    read = [
        read_measurement(spec, measurement, faults, final=False)
        for measurement in sent.measurements
    ]
    by_place = {(measurement.step, measurement.elapsed): measurement for measurement in read}
    measurements = tuple(by_place[place] for place in sorted(by_place))
    trial = Trial(study, 0, TrialState.REQUESTED, parameters, created=now)
    is_infeasible = sent.claim is Claim.INFEASIBLE
    final = None
    if not is_infeasible and sent.final is not None:
        final = read_measurement(spec, sent.final, faults, final=True)
    elif sent.claim is Claim.SUCCEEDED:
        final = final_measurement(spec, measurements)
        if final is None:
            faults.add(
                f"{sent.path}.final_measurement",
                "A trial that SUCCEEDED has a final measurement: give it, or a measurement with every metric "
                "of the study.",
            )
    faults.refuse()
    if final is None and not is_infeasible:
        return trial, measurements
    over = Trial(
        study,
        0,
        TrialState.INFEASIBLE if is_infeasible else TrialState.SUCCEEDED,
        parameters,
        created=now,
        started=now,
        ended=now,
        client=sent.client,
        final=final,
        infeasible_reason=sent.reason if is_infeasible else "",
    )
    return over, measurements
