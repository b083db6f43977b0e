"""Summaries of job resources, and requests that copy a job."""

import pytest

from trainshed.core.copies import copy_of
from trainshed.core.names import Api
from trainshed.core.resource_summary import summarize_resource

MACHINE = {"machineType": "n1-standard-4"}


@pytest.mark.parametrize(
    "inputs",
    [
        {
            "workerPoolSpecs": [
                {
                    "machineSpec": MACHINE,
                    "containerSpec": {"imageUri": "i", "args": None},
                    "pythonPackageSpec": None,
                }
            ],
            "baseOutputDirectory": {"outputUriPrefix": "gs://b/out"},
        },
        {
            "worker_pool_specs": [
                {
                    "machine_spec": {"machine_type": "n1-standard-4"},
                    "container_spec": {"image_uri": "i", "args": ["--epochs", 10.0]},
                    "replica_count": "1.0",
                }
            ],
            "base_output_directory": {"output_uri_prefix": "gs://b/out"},
        },
    ],
    ids=["nulls", "snake-case"],
)
def test_pipeline_inputs_in_the_format_of_any_client_are_summarized(inputs: object) -> None:
    summary = summarize_resource({"trainingTaskInputs": inputs})
    assert summary.output == "gs://b/out"
    assert [(pool.machine, pool.image) for pool in summary.pools] == [("n1-standard-4", "i")]


@pytest.mark.parametrize("job_id", ["census.3", "n" * 128, "again_copy1720000000000"])
def test_copied_ml_job_has_a_valid_job_id(job_id: str) -> None:
    copied = copy_of(Api.ML, {"jobId": job_id, "trainingInput": {"region": "r"}}, 10**18, "7")
    assert len(copied["jobId"]) <= 128 and copied["jobId"].replace("_", "").isalnum()
    assert copied["jobId"].count("_copy") == 1
