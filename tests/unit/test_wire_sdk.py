"""What the unmodified Python SDK puts on the wire, read by us and back (spec/clients#surface and
spec/clients#wire).

The SDK's messages live in protobuf's default pool and ours in a private one: that both are loaded
in this process is part of the test.
"""

import importlib
import inspect
import json
from typing import Any

import pytest
from google.protobuf import duration_pb2, json_format

from trainshed.wire import json as wire
from trainshed.wire import routes
from trainshed.wire.binding import bind


class _Sdk:
    """Loaded at its first use, which takes seconds: every worker reads this file, and one runs it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # as pytest asks of everything in this file
            raise AttributeError(name)
        return getattr(pytest.importorskip("google.cloud.aiplatform_v1"), name)


sdk = _Sdk()

SERVICES = {
    "job_service": "JobService",
    "pipeline_service": "PipelineService",
    "vizier_service": "VizierService",
    "model_service": "ModelService",
}


def custom_job_spec() -> Any:
    pool_spec = {
        "machine_spec": {
            "machine_type": "n1-standard-8",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 2,
        },
        "replica_count": 1,
        "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100},
        "container_spec": {
            "image_uri": "gcr.io/p/image",
            "command": ["python", "-m", "task"],
            "args": ["--epochs=10"],
            "env": [{"name": "A", "value": "1"}],
        },
    }
    return {
        "worker_pool_specs": [pool_spec, {}, pool_spec],
        "scheduling": {
            "timeout": duration_pb2.Duration(seconds=7200),
            "restart_job_on_worker_restart": True,
        },
        "base_output_directory": {"output_uri_prefix": "gs://b/out"},
        "enable_web_access": True,
    }


def study_spec() -> Any:
    return {
        "metrics": [{"metric_id": "loss", "goal": "MINIMIZE"}],
        "parameters": [
            {
                "parameter_id": "lr",
                "double_value_spec": {"min_value": 0, "max_value": 1},
                "scale_type": "UNIT_LINEAR_SCALE",
            },
            {"parameter_id": "opt", "categorical_value_spec": {"values": ["a", "b"]}},
            {"parameter_id": "n", "integer_value_spec": {"min_value": 0, "max_value": 8}},
        ],
    }


def requests() -> list[tuple[str, str, str, Any]]:
    place = "projects/p/locations/l"
    custom_job = {"display_name": "j", "job_spec": custom_job_spec(), "labels": {"a": "b"}}
    return [
        ("POST", f"/v1/{place}/customJobs", "", sdk.CustomJob(custom_job)),
        (
            "POST",
            f"/v1/{place}/hyperparameterTuningJobs",
            "",
            sdk.HyperparameterTuningJob(
                display_name="h",
                study_spec=study_spec(),
                max_trial_count=8,
                parallel_trial_count=2,
                trial_job_spec=custom_job_spec(),
            ),
        ),
        ("POST", f"/v1/{place}/studies", "", sdk.Study(display_name="s", study_spec=study_spec())),
        (
            "POST",
            f"/v1/{place}/studies/s/trials/1:complete",
            "*",
            sdk.CompleteTrialRequest(
                name=f"{place}/studies/s/trials/1",
                final_measurement={
                    "step_count": 3,
                    "metrics": [{"metric_id": "loss", "value": 0.0}],
                },
            ),
        ),
        (
            "POST",
            f"/v1/{place}/studies/s/trials",
            "",
            sdk.Trial(parameters=[{"parameter_id": "lr", "value": 0.25}]),
        ),
    ]


@pytest.mark.parametrize("index", range(5))
def test_rest_bodies_of_the_sdk_are_read_exactly(index: int) -> None:
    """Enums by number, zeros left out: the message we read is byte for byte the one it meant."""
    verb, path, body, sent = requests()[index]
    sent_pb: Any = sent._pb
    text = json_format.MessageToJson(sent_pb, use_integers_for_enums=True).encode()
    found = routes.match(verb, path)
    assert found is not None
    query = [("$alt", "json;enum-encoding=int")]
    bound = bind(found[0], found[1], query, text)
    assert bound.enums_as_ints
    got: Any = bound.message if body == "*" else getattr(bound.message, found[0].body)
    assert got.SerializeToString(deterministic=True) == sent_pb.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("enums_as_ints", [True, False])
def test_our_answers_are_read_by_the_sdk(enums_as_ints: bool) -> None:
    public = {
        "name": "projects/1/locations/l/customJobs/2",
        "displayName": "j",
        "state": "JOB_STATE_FAILED",
        "createTime": "2020-09-15T19:09:54.342080Z",
        "error": {"code": 3, "message": "The replica workerpool0-0 exited"},
        "webAccessUris": {"workerpool0-0": "http://x"},
        "jobSpec": {"scheduling": {"timeout": "7200s"}},
    }
    answer = wire.render(
        wire.from_public("google.cloud.aiplatform.v1.CustomJob", public),
        enums_as_ints=enums_as_ints,
    )
    job = sdk.CustomJob.from_json(answer)
    assert job.state == sdk.JobState.JOB_STATE_FAILED
    assert job.error.code == 3
    assert job.create_time.microsecond == 342080
    assert job.job_spec.scheduling.timeout.total_seconds() == 7200
    assert json.loads(answer)["state"] == (5 if enums_as_ints else "JOB_STATE_FAILED")


@pytest.mark.parametrize(("module", "service"), SERVICES.items())
def test_every_route_of_the_sdk_is_ours(module: str, service: str) -> None:
    transport = importlib.import_module(
        f"google.cloud.aiplatform_v1.services.{module}.transports.rest_base"
    )
    base: Any = getattr(transport, f"_Base{service}RestTransport")
    ours = {
        (route.method, route.verb.lower(), route.template.text, route.body)
        for route in routes.routes("aiplatform_v1")
        if route.service == f"google.cloud.aiplatform.v1.{service}"
    }
    checked = 0
    for name, method in inspect.getmembers(base):
        if not hasattr(method, "_get_http_options"):
            continue
        rpc = name.removeprefix("_Base")
        for option in method._get_http_options():
            if option["uri"].startswith(
                "/ui/"
            ) or f"/google.cloud.aiplatform.v1.{service}/{rpc}" not in (
                routes.rpcs("aiplatform_v1")
            ):
                continue
            checked += 1
            assert (rpc, option["method"], option["uri"], option.get("body", "")) in ours
    assert checked >= 6
