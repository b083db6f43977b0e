"""Jobs of the trials of a tuning job: arguments, directories and limits (spec/program#arguments,
spec/tuning#trials, facts/program#arguments, facts/program#output-directory)."""

import argparse

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.specs_requests import REDUCER, container, custom_job, ml, package, vertex
from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Value
from trainshed.core.tuning.trial_jobs import trial_spec

PARAMETERS: Parameters = (("rate", 0.001), ("layers", 3), ("batch", 64.0), ("opt", "adam w"))
ARGUMENTS = ("--rate", "0.001", "--layers", "3", "--batch", "64", "--opt", "adam w")


def test_trial_parameters_are_appended_to_program_arguments() -> None:
    """spec/tuning#parameters: this applies to all pools, except reduction servers."""
    program, reducer = package(args=["--epochs", "2"]), container(imageUri=REDUCER)
    spec = vertex(custom_job(program, container(command=["run"]), reducer))
    trial = trial_spec(spec, 7, PARAMETERS)
    assert trial.pool(0).program.args == ("--epochs", "2", *ARGUMENTS)
    assert trial.pool(1).program.args == ARGUMENTS
    assert trial.pool(1).program.command == ("run",)
    assert trial.pool(2) == spec.pool(2)


def test_trial_of_an_ml_job_has_a_separate_job_directory_and_no_maximum_wait() -> None:
    """facts/program#arguments: the trial number is appended only to jobDir. facts/lifecycle#scheduling: the
    maximum wait applies to the whole job."""
    spec = ml(
        jobDir="gs://bucket/job",
        args=["--output_dir", "gs://bucket/mine"],
        scheduling={"maxWaitTime": "1800s", "maxRunningTime": "60s", "priority": 3},
    )
    trial = trial_spec(spec, 2, PARAMETERS)
    assert trial.job_dir == "gs://bucket/job/2"
    assert trial.pool(0).program.args == ("--output_dir", "gs://bucket/mine", *ARGUMENTS)
    assert trial.scheduling.max_wait is None
    assert (trial.scheduling.timeout, trial.scheduling.priority) == (60 * 10**9, 3)
    assert trial_spec(ml(), 2, ()).job_dir is None


def test_trial_of_a_vertex_tuning_job_has_the_maximum_wait_of_the_request() -> None:
    """facts/lifecycle#scheduling: maxWaitDuration applies to each custom job separately."""
    scheduling = {"strategy": "FLEX_START", "maxWaitDuration": "60s"}
    request = custom_job(package(), scheduling=scheduling)
    request["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = {
        "machineType": "g2-standard-4",
        "acceleratorType": "NVIDIA_L4",
        "acceleratorCount": 1,
    }
    spec = vertex(request)
    assert trial_spec(spec, 1, ()).scheduling == spec.scheduling


VALUES = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53), st.text())
NAMES = st.text(alphabet="abcdefghij_", min_size=1)


@given(st.dictionaries(NAMES, st.one_of(st.floats(-1e30, 1e30), st.integers(-99, 99)), max_size=4))
@example({"drift": -1e-05})
def test_argparse_parses_trial_parameters(values: dict[str, float | int]) -> None:
    """spec/program#arguments: each parameter has two arguments, in the order of the tree."""
    args = trial_spec(vertex(custom_job()), 1, tuple(values.items())).pool(0).program.args
    assert args[::2] == tuple(f"--{name}" for name in values)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in values:
        parser.add_argument(f"--{name}", dest=f"value_{name}", type=float)
    parsed = vars(parser.parse_args(list(args)))
    assert parsed == {f"value_{name}": value for name, value in values.items()}


@given(st.integers(1, 10**6), st.dictionaries(NAMES, VALUES, max_size=3))
def test_trial_job_keeps_fields_and_machines_of_the_trial_specification(
    number: int, values: dict[str, Value]
) -> None:
    """spec/tuning#trials: each trial is a custom job with the same specification."""
    output = {"outputUriPrefix": "gs://bucket/a"}
    pools = (package(), package(replicaCount="2"))
    spec = vertex(custom_job(*pools, baseOutputDirectory=output))
    trial = trial_spec(spec, number, tuple(values.items()))
    assert trial.job_json == spec.job_json
    assert trial.replicas() == spec.replicas()
    assert [p.machine for p in trial.pools] == [p.machine for p in spec.pools]
    assert [p.program.env for p in trial.pools] == [p.program.env for p in spec.pools]
