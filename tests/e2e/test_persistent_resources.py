"""Persistent resources by the Vertex SDK and gcloud, unmodified, with jobs on them, across a killed service
(spec/queue#reservations).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import SKLEARN, Service, running, seen_by_sdk, start

_STRICT = ("--capacity", "strict", "--node-cpus", "12", "--node-memory", "60")
_PROGRAM = """
from google.cloud.aiplatform.persistent_resource import PersistentResource
from google.cloud.aiplatform_v1.types import DiskSpec, MachineSpec, ResourcePool

image, = arguments
pool = ResourcePool(
    machine_spec=MachineSpec(machine_type="n1-standard-4"),
    replica_count=2,
    disk_spec=DiskSpec(boot_disk_type="pd-ssd", boot_disk_size_gb=100),
)
resource = PersistentResource.create(
    persistent_resource_id="lab", resource_pools=[pool], labels={"made": "sdk"}
)
seen = {"state": resource.state.name, "name": resource.resource_name}
specs = [
    {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "container_spec": {"image_uri": image, "command": ["python3", "-c", "print('ran here')"]},
    }
]
job = aiplatform.CustomJob("on it", worker_pool_specs=specs, persistent_resource_id="lab")
job.run()
seen["job"] = job.state.name
seen["id"] = job.name
seen["named"] = job.gca_resource.job_spec.persistent_resource_id
seen["listed"] = [view.name for view in PersistentResource.list()]
try:
    aiplatform.CustomJob("off it", worker_pool_specs=specs, persistent_resource_id="none").run()
except Exception as refused:
    seen["refused"] = str(refused)
resource.reboot()
seen["rebooted"] = PersistentResource("lab").state.name
print("SEEN", json.dumps(seen))
"""
_DELETE = """
from google.cloud.aiplatform.persistent_resource import PersistentResource

resource = PersistentResource("lab")
resource.delete()
print("SEEN", json.dumps([view.name for view in PersistentResource.list()]))
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("strict") / "data", *_STRICT) as service:
        yield service


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_sdk_can_reserve_machines_and_run_jobs_on_the_reserved_machines(
    strict: Service, transport: str
) -> None:
    seen: dict[str, Any] = seen_by_sdk(strict, _PROGRAM, SKLEARN, transport=transport)
    assert seen["state"] == seen["rebooted"] == "RUNNING"
    assert seen["job"] == "JOB_STATE_SUCCEEDED"
    assert seen["named"] == "lab"
    assert "ran here" in strict.lines(seen["id"])
    assert seen["listed"] == ["lab"]
    assert "persistentResources/none does not exist" in seen["refused"]
    assert seen_by_sdk(strict, _DELETE, transport=transport) == []


@pytest.mark.gcloud
@needs_gcloud
def test_gcloud_manages_a_persistent_resource(strict: Service, tmp_path: Path) -> None:
    gcloud = Gcloud(strict, tmp_path)
    command = ("ai", "persistent-resources")
    gcloud.run(
        *(*command, "create", "--persistent-resource-id=gc", "--display-name=mine"),
        "--resource-pool-spec=replica-count=1,machine-type=n1-standard-4",
    )
    view = json.loads(gcloud.run(*command, "describe", "gc", "--format=json").stdout)
    assert (view["state"], view["displayName"]) == ("RUNNING", "mine")
    listed = gcloud.run(*command, "list", "--format=value(name.basename())")
    assert listed.stdout.split() == ["gc"]
    gcloud.run(*command, "reboot", "gc")
    gcloud.run(*command, "delete", "gc")
    assert gcloud.run(*command, "list", "--format=value(name)").stdout.split() == []


def test_persistent_resource_survives_a_service_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, *_STRICT) as service:
        body = {"resourcePools": [{"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "3"}]}
        place = "/v1/projects/trainshed/locations/us-central1/persistentResources"
        begun = service.call("POST", f"{place}?persistentResourceId=lab", body)
        service.kill()
        again = start(data, *_STRICT)
        try:
            done = again.call("POST", f"/v1/{begun['name']}:wait?timeout=60s", {})
            assert done["response"]["state"] == "RUNNING"
            (quota,) = (
                view
                for view in again.call("GET", "/trainshed/v1/quotas")["quotas"]
                if view["metric"] == "cpus_n1_e2"
            )
            assert quota["used"] == 12
            again.call("DELETE", f"{place}/lab")
        finally:
            again.terminate()
