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

from tests.e2e.running import (
    PROJECT,
    REGION,
    SKLEARN,
    Service,
    environment,
    given_by_env,
    seen_by,
)

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
image, script = sys.argv[1:]

def pools(text, replicas=1):
    container = {"image_uri": image, "command": ["python3", "-c", text]}
    return [{
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": replicas,
        "container_spec": container,
    }]

seen = {}
long = aiplatform.CustomJob(display_name="long", worker_pool_specs=pools("import time; time.sleep(600)"))
long.submit()
packaged = aiplatform.CustomJob.from_local_script(
    display_name="script", script_path=script, container_uri=image, args=["--x", "1"]
)
packaged.run()
seen["run"] = [packaged.state.name, packaged.resource_name]
long.cancel()
seen["listed"] = sorted(job.display_name for job in aiplatform.CustomJob.list())
bad = aiplatform.CustomJob(display_name="x" * 129, worker_pool_specs=pools("pass", 2))
try:
    bad.submit()
except Exception as error:
    seen["refused"] = [type(error).__name__, str(error), [
        violation.field for detail in error.details for violation in detail.field_violations
    ]]
packaged.delete()
seen["left"] = [job.display_name for job in aiplatform.CustomJob.list()]
seen["transport"] = type(long.api_client._transport if hasattr(long.api_client, "_transport")
                         else long.api_client.select_version("v1")._transport).__name__
print("SEEN " + json.dumps(seen))
"""


def test_the_sdk_needs_what_env_prints_and_nothing_else(service: Service, tmp_path: Path) -> None:
    """TLS, credentials and project come out of the environment; the certificate is checked."""
    script = tmp_path / "train.py"
    script.write_text("import sys; print('ran', sys.argv[1:])\n")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    seen = seen_by(program, SKLEARN, str(script), variables=given_by_env(service))
    assert seen["transport"] == "JobServiceGrpcTransport"
    state, name = seen["run"]
    assert state == "JOB_STATE_SUCCEEDED"
    assert name.startswith(f"projects/trainshed/locations/{REGION}/customJobs/")
    assert {"long", "script"} <= set(seen["listed"])
    kind, text, fields = seen["refused"]
    assert kind == "InvalidArgument"
    assert text.startswith("400 List of found errors:\t1.Field: display_name; Message: ")
    assert fields == ["display_name", "job_spec.worker_pool_specs[0].replica_count"]
    assert "script" not in seen["left"]


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


def gapic(version: str, channel: Any) -> Any:
    package = f"google.cloud.aiplatform_{version}"
    transports = importlib.import_module(f"{package}.services.job_service.transports")
    transport = transports.JobServiceGrpcTransport(channel=channel)
    return importlib.import_module(package).JobServiceClient(transport=transport)


def _job(name: str, script: str = "pass") -> dict[str, Any]:
    container = {"image_uri": SKLEARN, "command": ["python3", "-c", script]}
    machine = {"machine_type": "n1-standard-4"}
    spec = {"machine_spec": machine, "replica_count": 1, "container_spec": container}
    return {"display_name": name, "job_spec": {"worker_pool_specs": [spec]}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_generated_clients(version: str, channel: Any, service: Service) -> None:
    """Create, list in pages, get, delete by an operation with the version's own metadata; locations;
    permissions."""
    client = gapic(version, channel)
    mark = f"gapic-{version}"
    names = [client.create_custom_job(parent=PARENT, custom_job=_job(mark)).name for _ in range(3)]
    for name in names:
        service.finish(name.rsplit("/", 1)[1])
    request = {"parent": PARENT, "filter": f'display_name="{mark}"', "page_size": 2}
    pages = client.list_custom_jobs(request=request).pages
    assert [len(page.custom_jobs) for page in pages] == [2, 1]
    assert client.get_custom_job(name=names[0]).state.name == "JOB_STATE_SUCCEEDED"
    deletion = client.delete_custom_job(name=names[0])
    deletion.result(timeout=30)
    assert type(deletion.metadata).__module__.startswith(f"google.cloud.aiplatform_{version}.")
    name = deletion.operation.name
    assert client.get_operation({"name": name}).done
    assert name in {each.name for each in client.list_operations({"name": PARENT}).operations}
    assert client.get_location({"name": PARENT}).location_id == REGION
    asked = {"resource": names[1], "permissions": ["aiplatform.customJobs.get", "x.y.z"]}
    held = client.test_iam_permissions(asked).permissions
    assert list(held) == ["aiplatform.customJobs.get"]


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
    program = Path(__file__).with_name("grpc_node_client.js")
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
