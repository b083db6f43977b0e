"""Changes of trials, and validation of client requests for trials (spec/tuning#trials, facts/tuning)."""

import math

import pytest

from trainshed.core.errors import FailedPrecondition, InvalidRequest
from trainshed.core.lifecycle.transition import Next
from trainshed.core.requests import Faults, Section
from trainshed.core.study import changes
from trainshed.core.study.changes import TRIAL, TrialTrigger
from trainshed.core.study.reading import read_measurement, read_parameters
from trainshed.core.study.records import Measurement, Parameters, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, StudySpec

SPEC = StudySpec(
    parameters=(
        Parameter("rate", ParameterType.DOUBLE, low=0.001, high=1.0),
        Parameter("model", ParameterType.CATEGORICAL, categories=("linear", "deep")),
        Parameter("layers", ParameterType.INTEGER, low=1, high=5, parent=1, when=("deep",)),
        Parameter("width", ParameterType.DISCRETE, values=(16.0, 32.0), parent=2, when=(2, 3)),
    ),
    metrics=(Metric("loss", Goal.MINIMIZE), Metric("memory", Goal.MINIMIZE)),
)
LOSS = Measurement((("loss", 0.5), ("memory", 1.0)), step=1)


# --- changes


@pytest.mark.parametrize("state", [state for state in TrialState if state.is_over])
def test_finished_trial_rejects_all_changes(state: TrialState) -> None:
    over = Trial(StudyUid(1), 7, state, (("rate", 0.1),), created=10)
    refused = (
        lambda: changes.assign(over, "worker", 20),
        lambda: changes.record_measurement(over, 20),
        lambda: changes.request_stop(over),
        lambda: changes.complete(over, LOSS, 20),
        lambda: changes.infeasible(over, "late", 20),
    )
    for change in refused:
        with pytest.raises(FailedPrecondition, match=f"Trial 7 is {state} and cannot be"):
            change()


def test_every_unfinished_trial_can_be_completed_or_marked_infeasible() -> None:
    """spec/lifecycle#states: no state blocks the end of a trial."""
    for state in TrialState:
        if state.is_over:
            continue
        for trigger in (TrialTrigger.COMPLETED, TrialTrigger.FOUND_INFEASIBLE):
            cell = TRIAL.cells[state, trigger]
            assert isinstance(cell, Next) and cell.state.is_over


# --- parameters


def params(**values: float | str | None) -> Section:
    entries = [{"parameterId": name, "value": value} for name, value in values.items()]
    return Section({"parameters": entries}, "trial", Faults())


def read(sent: Section) -> Parameters:
    values = read_parameters(SPEC, sent)
    sent.faults.refuse()
    return values


def violations(sent: Section) -> dict[str, str]:
    read_parameters(SPEC, sent)
    with pytest.raises(InvalidRequest) as caught:
        sent.faults.refuse()
    return {fault.field: fault.description for fault in caught.value.violations}


def test_trial_parameters_are_ordered_and_typed_like_the_tree() -> None:
    """spec/tuning#parameters: all parameter types, and conditional parameters."""
    values = read(params(width=32.0 + 1e-12, layers=3.0, model="deep", rate=1.0))
    assert values == (("rate", 1.0), ("model", "deep"), ("layers", 3), ("width", 32.0))
    assert [type(value) for _, value in values] == [float, str, int, float]


def test_trial_without_values_for_inactive_parameters_is_accepted() -> None:
    assert read(params(rate=0.5, model="linear")) == (("rate", 0.5), ("model", "linear"))


def test_trial_error_lists_all_invalid_parameters() -> None:
    """spec/submit#refusals: one error contains the violations of all parameters."""
    faults = violations(params(rate=2.0, model="shallow", depth=1.0))
    assert faults == {
        "trial.parameters[0].value": "2.0 is not a value of 'rate', which has numbers from 0.001 to 1.",
        "trial.parameters[1].value": (
            "'shallow' is not a value of 'model', which has the values linear and deep."
        ),
        "trial.parameters[2].parameter_id": (
            "'depth' is not a parameter of the study, which has rate, model, layers and width."
        ),
    }


def test_inactive_trial_parameter_is_rejected_at_any_depth() -> None:
    faults = violations(params(rate=0.5, model="linear", layers=2.0, width=16.0))
    assert faults == {
        "trial.parameters[2].parameter_id": "'layers' is not active: it requires model = deep.",
        "trial.parameters[3].parameter_id": "'width' is not active: it requires layers = 2 and 3.",
    }


@pytest.mark.parametrize("value", [2.5, 0.0, 6.0, math.nan, math.inf, "2", None])
def test_invalid_value_of_an_integer_parameter_is_rejected(value: float | str | None) -> None:
    faults = violations(params(rate=0.5, model="deep", layers=value))
    assert list(faults) == ["trial.parameters[2].value"]
    assert "whole numbers from 1 to 5" in faults["trial.parameters[2].value"]


def test_missing_or_duplicate_trial_parameter_is_rejected() -> None:
    entries = [{"parameterId": "rate", "value": value} for value in (0.5, 0.6)]
    faults = violations(Section({"parameters": entries}, "trial", Faults()))
    assert faults["trial.parameters[1].parameter_id"].startswith("'rate' appears twice")
    assert faults["trial.parameters"].startswith("The parameter 'model' is missing")


# --- measurements


def measurement(step: int = 0, elapsed: int = 0, **metrics: float) -> Section:
    entries = [{"metricId": name, "value": value} for name, value in metrics.items()]
    public = {"stepCount": str(step), "elapsedDuration": f"{elapsed}s", "metrics": entries}
    return Section(public, "measurement", Faults())


def test_only_the_final_measurement_requires_all_metrics() -> None:
    sent = measurement(3, 5, loss=0.1)
    read = read_measurement(SPEC, sent, final=False)
    sent.faults.refuse()
    assert read == Measurement((("loss", 0.1),), 3, 5 * 10**9)
    read_measurement(SPEC, sent, final=True)
    with pytest.raises(InvalidRequest, match="Missing: memory"):
        sent.faults.refuse()


@pytest.mark.parametrize("elapsed", [-1, 10**10])
def test_measurement_error_lists_all_faults(elapsed: int) -> None:
    """spec/submit#refusals: one error contains the violations of all fields."""
    sent = measurement(-1, elapsed, loss=math.nan, gain=1.0)
    read_measurement(SPEC, sent, final=False)
    with pytest.raises(InvalidRequest) as caught:
        sent.faults.refuse()
    assert [fault.field for fault in caught.value.violations] == [
        "measurement.metrics[0].value",
        "measurement.metrics[1].metric_id",
        "measurement.step_count",
        "measurement.elapsed_duration",
    ]


def test_measurement_without_metrics_is_rejected() -> None:
    sent = measurement()
    read_measurement(SPEC, sent, final=True)
    with pytest.raises(
        InvalidRequest, match=r"The measurement has no metric\. The study has loss and memory"
    ):
        sent.faults.refuse()


def test_invalid_parameter_causes_no_errors_for_dependent_parameters() -> None:
    faults = violations(params(rate=0.5, model="shallow", layers=9.0, width=1.0))
    assert list(faults) == ["trial.parameters[1].value"]
