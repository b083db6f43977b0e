"""Job files of users: resources of both APIs, and files for gcloud's `--config`."""

from typing import Any

import pytest

from trainshed.cli.run.job_files import JobFile, JobFileError, read, recognize, with_region
from trainshed.core.names import Api

SPEC: dict[str, Any] = {"workerPoolSpecs": [{"replicaCount": 1}]}
TRAINING: dict[str, Any] = {"scaleTier": "BASIC", "region": "us-central1"}
VERTEX = JobFile(Api.VERTEX, {"displayName": "n", "jobSpec": SPEC})
ML = JobFile(Api.ML, {"jobId": "i", "trainingInput": TRAINING})
YAML = """
workerPoolSpecs:
- machineSpec:
    machineType: n1-standard-4
  replicaCount: 1
  containerSpec:
    imageUri: gcr.io/p/i
    args: [--date, 2026-01-02]
"""


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "The job file is empty."),
        ("# all of it\n", "The job file is empty."),
        ("[1]", "contains no fields"),
    ],
)
def test_job_file_without_an_object_is_rejected(text: str, output: str) -> None:
    with pytest.raises(JobFileError, match=output):
        read(text)


def test_job_file_accepts_a_single_value_for_a_list() -> None:
    """gcloud accepts the same form."""
    pool = "workerPoolSpecs:\n  python_package_spec: {package_uris: gs://b/p, args: }\n"
    program = {"package_uris": ["gs://b/p"], "args": None}
    pools = {"workerPoolSpecs": [{"python_package_spec": program}]}
    assert read(f"{pool}labels: {{env: prod}}\n") == {**pools, "labels": {"env": "prod"}}


@pytest.mark.parametrize(
    ("result", "file"),
    [
        (SPEC, VERTEX),
        ({"jobSpec": SPEC}, VERTEX),
        ({"displayName": "n", "jobSpec": SPEC}, VERTEX),
        ({"trainingInput": TRAINING}, ML),
        ({"jobId": "i", "trainingInput": TRAINING}, ML),
        (
            {"display_name": "x", "job_spec": {"worker_pool_specs": []}},
            JobFile(Api.VERTEX, {"display_name": "x", "job_spec": {"worker_pool_specs": []}}),
        ),
        (
            {"worker_pool_specs": []},
            JobFile(Api.VERTEX, {"displayName": "n", "jobSpec": {"worker_pool_specs": []}}),
        ),
        (
            {"trialJobSpec": SPEC, "studySpec": {}},
            JobFile(Api.VERTEX, {"displayName": "n", "trialJobSpec": SPEC, "studySpec": {}}),
        ),
        (
            {"labels": {"a": "b"}, "training_input": {}},
            JobFile(Api.ML, {"jobId": "i", "labels": {"a": "b"}, "training_input": {}}),
        ),
    ],
)
def test_api_and_format_of_a_job_file_are_recognized(result: dict[str, Any], file: JobFile) -> None:
    assert recognize(result, None, "n", "i") == file
    assert recognize(result, file.api, "n", "i") == file


def test_ambiguous_job_file_is_rejected_without_the_api_option() -> None:
    assert recognize(TRAINING, Api.ML, "n", "i") == ML
    with pytest.raises(JobFileError, match="Specify the API with --api"):
        recognize(TRAINING, None, "n", "i")


def test_pipeline_file_error_names_the_required_fields() -> None:
    with pytest.raises(JobFileError, match="workerPoolSpecs of its trainingTaskInputs"):
        recognize({"displayName": "n", "trainingTaskInputs": SPEC}, None, "n", "i")


def test_region_is_added_only_to_ml_jobs() -> None:
    assert with_region(VERTEX, "r") is VERTEX
    assert with_region(ML, "r") is ML, "the region of the file takes precedence"
    bare = JobFile(Api.ML, {"training_input": {"a": 1}})
    assert with_region(bare, "r").job == {"training_input": {"a": 1, "region": "r"}}
    assert with_region(bare, "") is bare


def test_yaml_job_file_is_parsed_and_errors_show_the_line() -> None:
    pytest.importorskip("yaml", reason="needs PyYAML")
    result = read(YAML)
    assert result["workerPoolSpecs"][0]["containerSpec"]["args"] == ["--date", "2026-01-02"]
    wrong = {"a: [": r"line \d, column \d: ", "2026-01-02: a": "keys must be ", "&a [*a]": "C"}
    for text, cause in wrong.items():
        with pytest.raises(JobFileError, match=rf"neither JSON nor YAML: {cause}\S"):
            read(text)


def test_aliases_that_multiply_a_yaml_file_are_rejected() -> None:
    lists = [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(9)]
    with pytest.raises(JobFileError, match="Aliases expand it beyond"):
        read(f"a0: &a0 [{'x' * 9_000}]\n" + "\n".join(lists))
