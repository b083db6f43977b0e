"""The Node client over gRPC, unmodified (spec/clients#recipes). test_emulate.py and test_experiments_sdk.py
test the Vertex SDK over gRPC, contract/api/test_grpc.py messages of both versions.
"""

import json
from pathlib import Path

from tests.commands import execute
from tests.e2e.conftest import NODE
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, environment

PARENT = f"projects/{PROJECT}/locations/{REGION}"


def test_node_grpc_client_creates_lists_and_cancels_jobs(
    service: Service, node_modules: Path, tmp_path: Path
) -> None:
    """Creating, listing (paged) and cancelling over gRPC; spec/clients#recipes, spec/clients#numbers."""
    variables = environment(service.data) | {
        "NODE_PATH": str(node_modules),
        "METADATA_SERVER_DETECTION": "none",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": service.extra["ca_bundle"],
    }
    words = ("node", NODE / "grpc_client.js", service.data / "service.json", SKLEARN)
    done = execute(*words, env=variables, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["pages"], seen["listed"]) == (2, list(reversed(seen["created"])))
    assert seen["state"] == "JOB_STATE_CANCELLED"
    assert [seen[kind]["code"] for kind in ("gone", "wrong", "long")] == [5, 3, 3]
    assert seen["wrong"]["fields"] == ["display_name", "job_spec.worker_pool_specs"]
    # An error message that would be too long for a trailer.
    assert len(seen["long"]["fields"]) > 30
