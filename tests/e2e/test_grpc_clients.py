"""The clients over gRPC, unmodified: Vertex SDK, generated clients of both versions, Node
(spec/clients#recipes; issue 4, item 1)."""

import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.conftest import NODE
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, environment, given_by_env, seen_by

PARENT = f"projects/{PROJECT}/locations/{REGION}"

# --- the SDK, as a user's program: what `trainshed env` prints is all it is given

_PROGRAM = """
import json, os, sys
from google.cloud import aiplatform

aiplatform.init(
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
    staging_bucket="gs://trainshed",
)

def pools(replicas):
    container = {"image_uri": sys.argv[1], "command": ["sleep", "600"]}
    return [{
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": replicas,
        "container_spec": container,
    }]

long = aiplatform.CustomJob(display_name="long", worker_pool_specs=pools(1))
long.submit()
long.cancel()
seen = {"name": long.resource_name, "listed": [job.display_name for job in aiplatform.CustomJob.list()]}
bad = aiplatform.CustomJob(display_name="x" * 129, worker_pool_specs=pools(2))
try:
    bad.submit()
except Exception as error:
    seen["refused"] = [type(error).__name__, str(error), [
        violation.field for detail in error.details for violation in detail.field_violations
    ]]
seen["transport"] = type(long.api_client._transport if hasattr(long.api_client, "_transport")
                         else long.api_client.select_version("v1")._transport).__name__
print("SEEN " + json.dumps(seen))
"""


def test_the_sdk_needs_what_env_prints_and_nothing_else(service: Service, tmp_path: Path) -> None:
    """TLS, credentials and project come out of the environment; the certificate is checked."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    seen = seen_by(program, SKLEARN, variables=given_by_env(service))
    assert seen["transport"] == "JobServiceGrpcTransport"
    assert seen["name"].startswith(f"{PARENT}/customJobs/")
    assert "long" in seen["listed"]
    kind, text, fields = seen["refused"]
    assert kind == "InvalidArgument"
    assert text.startswith("400 List of found errors:\t1.Field: display_name; Message: ")
    assert fields == ["display_name", "job_spec.worker_pool_specs[0].replica_count"]


# --- the generated clients below it, without TLS

grpc: Any = importlib.import_module("grpc")


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: list[tuple[str, str]]
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Bearer(grpc.UnaryUnaryClientInterceptor):
    """Adds the token: over an insecure channel no credentials are sent."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._token}")]
        return continuation(
            _Details(details.method, details.timeout, metadata, None, None, None), request
        )


@pytest.fixture(scope="module")
def channel(service: Service) -> Iterator[Any]:
    with grpc.insecure_channel(service.extra["grpc"]) as opened:
        yield grpc.intercept_channel(opened, _Bearer(service.token))


def gapic(kind: str, channel: Any) -> Any:
    """The generated client of v1beta1; v1 has the SDK."""
    package = "google.cloud.aiplatform_v1beta1"
    transports = importlib.import_module(f"{package}.services.{kind.lower()}_service.transports")
    transport = getattr(transports, f"{kind}ServiceGrpcTransport")(channel=channel)
    return getattr(importlib.import_module(package), f"{kind}ServiceClient")(transport=transport)


def test_a_generated_client_of_jobs(channel: Any, service: Service) -> None:
    """Create, list in pages, get, delete by an operation with the version's own metadata; locations;
    permissions."""
    client = gapic("Job", channel)
    container = {"image_uri": SKLEARN, "command": ["true"]}
    machine = {"machine_type": "n1-standard-4"}
    spec = {"machine_spec": machine, "replica_count": 1, "container_spec": container}
    job = {"display_name": "gapic", "job_spec": {"worker_pool_specs": [spec]}}
    names = [client.create_custom_job(parent=PARENT, custom_job=job).name for _ in range(3)]
    for name in names:
        service.finish(name.rsplit("/", 1)[1])
    request = {"parent": PARENT, "filter": 'display_name="gapic"', "page_size": 2}
    pages = client.list_custom_jobs(request=request).pages
    assert [len(page.custom_jobs) for page in pages] == [2, 1]
    assert client.get_custom_job(name=names[0]).state.name == "JOB_STATE_SUCCEEDED"
    deletion = client.delete_custom_job(name=names[0])
    deletion.result(timeout=30)
    assert type(deletion.metadata).__module__.startswith("google.cloud.aiplatform_v1beta1.")
    name = deletion.operation.name
    assert client.get_operation({"name": name}).done
    assert name in {
        operation.name for operation in client.list_operations({"name": PARENT}).operations
    }
    assert client.get_location({"name": PARENT}).location_id == REGION
    body = {"resource": names[1], "permissions": ["aiplatform.customJobs.get", "x.y.z"]}
    held = client.test_iam_permissions(body).permissions
    assert list(held) == ["aiplatform.customJobs.get"]


def test_a_generated_client_of_studies(channel: Any) -> None:
    """facts/tuning#vizier: addTrialMeasurement; complete without a final measurement takes the last."""
    client = gapic("Vizier", channel)
    parameter = {"parameter_id": "x", "double_value_spec": {"min_value": 0, "max_value": 1}}
    spec = {"metrics": [{"metric_id": "loss", "goal": "MINIMIZE"}], "parameters": [parameter]}
    body = {"display_name": "gapic", "study_spec": spec}
    study = client.create_study(parent=PARENT, study=body).name
    request = {"parent": study, "suggestion_count": 2, "client_id": "me"}
    first, second = client.suggest_trials(request).result(timeout=60).trials
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        measured = {"step_count": step, "metrics": [{"metric_id": "loss", "value": loss}]}
        client.add_trial_measurement({"trial_name": first.name, "measurement": measured})
    done = client.complete_trial({"name": first.name})
    assert (done.state.name, done.final_measurement.metrics[0].value) == ("SUCCEEDED", 2.0)
    assert [measurement.step_count for measurement in done.measurements] == [1, 2, 3]
    listed = client.list_trials(request={"parent": study, "page_size": 1})
    assert [trial.id for trial in listed] == ["1", "2"]
    client.delete_trial(name=second.name)
    client.delete_study(name=study)


# --- Node


def test_the_node_client(service: Service, node_modules: Path, tmp_path: Path) -> None:
    """Issue 4: creating, listing (paged) and cancelling over gRPC; spec/clients#recipes,
    spec/clients#numbers."""
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps(service.extra))
    variables = environment(service.data) | {
        "NODE_PATH": str(node_modules),
        "METADATA_SERVER_DETECTION": "none",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": service.extra["ca_bundle"],
    }
    program = NODE / "grpc_client.js"
    done = subprocess.run(
        ["node", str(program), str(ready), SKLEARN],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=os.fspath(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["pages"] == 2
    assert seen["listed"] == list(reversed(seen["created"]))
    assert seen["state"] == "JOB_STATE_CANCELLED"
    assert seen["gone"]["code"] == 5
    assert seen["wrong"]["code"] == 3
    assert seen["wrong"]["fields"] == ["display_name", "job_spec.worker_pool_specs"]
    # A refusal that would be too long for a trailer.
    assert seen["long"]["code"] == 3
    assert len(seen["long"]["fields"]) > 30
