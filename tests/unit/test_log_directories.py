"""Directories of the TensorBoard event files of a job (facts/experiments#log-directories)."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from trainshed.core.job import LOG_DIRECTORY, JobSpec
from trainshed.core.names import Api


def spec_with(value: str) -> JobSpec:
    spec = job(output="gs://b/out").spec
    pool = spec.pools[0]
    return replace(spec, pools=(replace(pool, program=replace(pool.program, env=((LOG_DIRECTORY, value),))),))


def test_log_directory_of_a_vertex_job_is_the_logs_folder_of_the_output_directory() -> None:
    assert [job(output=output).spec.log_directory for output in ("gs://b/out/", None)] == [
        *("gs://b/out/logs", None)
    ]


def test_log_directory_of_an_ml_job_is_the_job_directory() -> None:
    spec = replace(job(api=Api.ML).spec, job_dir="gs://b/census/3/")
    assert spec.log_directory == "gs://b/census/3"


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ("gs://other/tb/", "gs://other/tb"),
        ("/gcs/other/tb", "gs://other/tb"),
        ("/tmp/tb", None),
        ("$(AIP_MODEL_DIR)/tb", None),
        ("gs://other/$(HOSTNAME)", None),
        ("", None),
    ],
)
def test_aip_tensorboard_log_dir_set_by_the_user_overrides_the_log_directory(
    value: str, directory: str | None
) -> None:
    assert spec_with(value).log_directory == directory
