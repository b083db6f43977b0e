"""What a job's resource says: in short, and as the request for a copy."""

import pytest

from trainshed.core.copies import copy_of
from trainshed.core.names import Api
from trainshed.core.requested import requested

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
def test_the_inputs_of_a_pipeline_are_read_as_clients_write_them(inputs: object) -> None:
    asked_for = requested({"trainingTaskInputs": inputs})
    assert asked_for.output == "gs://b/out"
    assert [(pool.machine, pool.image) for pool in asked_for.pools] == [("n1-standard-4", "i")]


@pytest.mark.parametrize("job_id", ["census.3", "n" * 128, "again_copy1720000000000"])
def test_a_copy_of_an_ml_job_has_an_id_that_jobs_may_have(job_id: str) -> None:
    copied = copy_of(Api.ML, {"jobId": job_id, "trainingInput": {"region": "r"}}, 10**18, "7")
    assert len(copied["jobId"]) <= 128 and copied["jobId"].replace("_", "").isalnum()
    assert copied["jobId"].count("_copy") == 1
