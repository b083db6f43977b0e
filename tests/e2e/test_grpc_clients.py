"""The clients over gRPC, unmodified: the Vertex SDK and Node (spec/clients#recipes). Messages of both
versions: contract/api/test_grpc.py."""

import json
from pathlib import Path

from tests.commands import execute
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


# --- Node


def test_the_node_client(service: Service, node_modules: Path, tmp_path: Path) -> None:
    """Issue 4: creating, listing (paged) and cancelling over gRPC; spec/clients#recipes,
    spec/clients#numbers."""
    variables = environment(service.data) | {
        "NODE_PATH": str(node_modules),
        "METADATA_SERVER_DETECTION": "none",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": service.extra["ca_bundle"],
    }
    words = ("node", NODE / "grpc_client.js", service.data / "service.json", SKLEARN)
    done = execute(*words, env=variables, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["pages"] == 2
    assert seen["listed"] == list(reversed(seen["created"]))
    assert seen["state"] == "JOB_STATE_CANCELLED"
    assert [seen[kind]["code"] for kind in ("gone", "wrong", "long")] == [5, 3, 3]
    assert seen["wrong"]["fields"] == ["display_name", "job_spec.worker_pool_specs"]
    # A refusal that would be too long for a trailer.
    assert len(seen["long"]["fields"]) > 30
