"""`trainshed nodes`: drains and waiting for them; `trainshed quotas`."""

import json
from typing import Any

import pytest

from tests.contract.cli.fake_service import FakeService
from trainshed.cli import capacity

NODES = "/trainshed/v1/nodes"


def node(name: str = "node-1", *replicas: str, **more: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": name,
        "condition": "READY",
        "replicas": [{"replica": replica} for replica in replicas],
    }
    return record | more


@pytest.fixture(autouse=True)
def _no_poll_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_POLL_INTERVAL", 0)


def test_drain_command_sends_the_reason_and_returns_immediately(service: FakeService) -> None:
    drained = node("node-1", "workerpool0-0", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", drained)
    result = service.cli("nodes", "drain", "node-1", "--reason", "new disk")
    assert result.stdout == "node-1  accepts no new work; 1 replica on it is stopping\n"
    assert json.loads(service.sent[0].body) == {"reason": "new disk"}


def test_drain_command_with_the_wait_option_returns_when_the_node_is_empty(service: FakeService) -> None:
    both = node("node-1", "workerpool0-0", "workerpool1-0", condition="DRAINED")
    single = node("node-1", "workerpool1-0", condition="DRAINED")
    none = node("node-1", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", both)
    service.on("GET", NODES, *({"nodes": [node("node-2"), record]} for record in (both, single, none)))
    result = service.cli("nodes", "drain", "node-1", "--wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "node-1  accepts no new work; 2 replicas on it are stopping",
        "node-1  is free",
    ]


def test_undrain_command_shows_the_new_condition_of_the_node(service: FakeService) -> None:
    gone = node(condition="GONE", cause="node-1 does not answer")
    service.on("POST", f"{NODES}/node-1:undrain", node(), gone, {"name": "node-1"})
    output = [service.cli("nodes", "drain", "node-1", "--undo").stdout for _ in range(3)]
    assert output[0] == "node-1  accepts work again\n"
    assert output[1].endswith("accepts no work yet: node-1 does not answer\n")
    assert output[2].endswith("the node is not available\n")


def test_quota_is_set_and_printed(service: FakeService) -> None:
    place = {"project": "p", "region": "us-central1"}
    quota = place | {"metric": "cpus_n1_e2", "used": 12.5}
    sets = "/trainshed/v1/quotas:set"
    service.on("POST", sets, quota | {"limit": 20}, quota | {"limit": "unlimited"})
    output = service.cli("quotas", "set", "cpus_n1_e2", "20").stdout
    assert output == "cpus_n1_e2  20 for p in us-central1, 12.5 used\n"
    service.cli("quotas", "set", "cpus_n1_e2", "unlimited")
    bodies = [json.loads(body) for body in service.bodies("POST", sets)]
    asks = place | {"metric": "cpus_n1_e2", "user": ""}
    assert bodies == [asks | {"limit": 20}, asks | {"limit": "unlimited"}]
