"""`trainshed nodes`: tables, and a drain that is waited for."""

import json
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService
from trainshed.cli import nodes

NODES = "/trainshed/v1/nodes"
JOB = "projects/p/locations/us-central1/customJobs/7"


def node(name: str = "node-1", *replicas: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "condition": "READY",
        "cause": "",
        "vcpus": 8,
        "usedVcpus": 2.5,
        "memoryBytes": 32 * 2**30,
        "usedMemoryBytes": 4 * 2**30,
        "accelerators": [{"type": "NVIDIA_TESLA_T4", "count": 2, "used": 1}],
        "replicas": [{"job": JOB, "replica": replica} for replica in replicas],
    }
    return found | more


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_LOOK_AGAIN", 0)


def test_list_shows_what_is_used_of_what_there_is(trainshed: Invoke, service: FakeService) -> None:
    bare = node("node-10", accelerators=[])
    service.on("GET", NODES, {"nodes": [node("node-1", "workerpool0-0"), bare]})
    header, first, second = trainshed("nodes", "list").stdout.splitlines()
    assert header.split() == ["NODE", "CONDITION", "CPUS", "MEMORY", "ACCELERATORS", "REPLICAS"]
    assert first.split("  ")[0] == "node-1"
    assert "2.5/8  4.0/32.0 GiB  1/2 NVIDIA_TESLA_T4" in first
    assert (first[-1], second[-1], "–" in second) == ("1", "0", True)


def test_list_shows_what_others_use(trainshed: Invoke, service: FakeService) -> None:
    devices = [{"type": "NVIDIA_TESLA_T4", "count": 2, "used": 0, "usedByOthers": 1}]
    shared = node(othersVcpus=3, othersMemoryBytes=4 * 2**30, accelerators=devices)
    service.on("GET", NODES, {"nodes": [shared, node("node-2")]})
    header, first, second = trainshed("nodes", "list").stdout.splitlines()
    assert "OTHERS" in header.split()
    assert "3 CPUs, 4.0 GiB, 1 NVIDIA_TESLA_T4" in first
    assert second.split()[-2] == "–"


def test_list_says_why_a_node_takes_no_work(trainshed: Invoke, service: FakeService) -> None:
    drained = node(condition="DRAINED", cause="node-1 is under maintenance: new disk")
    service.on("GET", NODES, {"nodes": [drained, node("node-2")]})
    header, first, second = trainshed("nodes", "list").stdout.splitlines()
    assert header.endswith("WHY")
    assert first.endswith("node-1 is under maintenance: new disk")
    assert second.endswith("–")
    assert json.loads(trainshed("nodes", "list", "--format", "json").stdout)[0] == drained


def test_list_says_who_has_which_gpus(trainshed: Invoke, service: FakeService) -> None:
    busy = node("node-1", "workerpool0-0", "workerpool1-0")
    has = {"accelerator": "NVIDIA_TESLA_T4", "accelerators": 1, "gpus": ["GPU-a"]}
    busy["replicas"][0] |= has
    service.on("GET", NODES, {"nodes": [busy]})
    *_, blank, header, holder = trainshed("nodes").stdout.splitlines()
    assert (blank, header.split()) == ("", ["NODE", "ACCELERATORS", "REPLICA", "OF", "GPUS"])
    assert holder.split("  ") == ["node-1", "1 NVIDIA_TESLA_T4", "workerpool0-0", JOB, "GPU-a"]


def test_the_command_alone_lists(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", NODES, {"nodes": [node()]})
    assert trainshed("nodes").stdout == trainshed("nodes", "list").stdout


def test_no_nodes(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", NODES, {"nodes": []})
    result = trainshed("nodes", "list")
    assert (result.stdout, "no nodes now" in result.stderr) == ("", True)


def test_drain_tells_the_reason_and_does_not_wait(trainshed: Invoke, service: FakeService) -> None:
    drained = node("node-1", "workerpool0-0", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", drained)
    result = trainshed("nodes", "drain", "node-1", "--reason", "new disk")
    assert result.stdout == "node-1  takes no more work; 1 replica there is asked to leave\n"
    assert json.loads(service.asked[0].body) == {"reason": "new disk"}


def test_drain_waits_until_nothing_runs_there(trainshed: Invoke, service: FakeService) -> None:
    both = node("node-1", "workerpool0-0", "workerpool1-0", condition="DRAINED")
    one = node("node-1", "workerpool1-0", condition="DRAINED")
    none = node("node-1", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", both)
    service.on("GET", NODES, *({"nodes": [node("node-2"), found]} for found in (both, one, none)))
    result = trainshed("nodes", "drain", "node-1", "--wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "node-1  takes no more work; 2 replicas there are asked to leave",
        f"  workerpool0-0 of {JOB}  is leaving",
        f"  workerpool1-0 of {JOB}  is leaving",
        f"  workerpool0-0 of {JOB}  has left",
        f"  workerpool1-0 of {JOB}  has left",
        "node-1  is free",
    ]


def test_a_wait_ends_when_the_node_goes_away(trainshed: Invoke, service: FakeService) -> None:
    drained = node("node-1", "workerpool0-0", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", drained)
    service.on("GET", NODES, {"nodes": []})
    assert trainshed("nodes", "drain", "node-1", "--wait").stdout.endswith("node-1  is free\n")


def test_a_wait_ends_when_the_node_is_given_back(trainshed: Invoke, service: FakeService) -> None:
    drained = node("node-1", "workerpool0-0", condition="DRAINED")
    service.on("POST", f"{NODES}/node-1:drain", drained)
    service.on("GET", NODES, {"nodes": [node("node-1", "workerpool0-0")]})
    result = trainshed("nodes", "drain", "node-1", "--wait")
    assert result.exit_code == 1
    assert "let take work again meanwhile" in result.stderr


def test_undrain(trainshed: Invoke, service: FakeService) -> None:
    gone = node(condition="GONE", cause="node-1 does not answer")
    service.on("POST", f"{NODES}/node-1:undrain", node(), gone, {"name": "node-1"})
    said = [trainshed("nodes", "undrain", "node-1").stdout for _ in range(3)]
    assert said[0] == "node-1  takes work again\n"
    assert said[1].endswith("takes no work yet: node-1 does not answer\n")
    assert said[2].endswith("it is not there now\n")


def test_an_unknown_node(trainshed: Invoke, service: FakeService) -> None:
    message = "There is no node 'node-3'; the nodes are: node-1."
    service.refuse("POST", f"{NODES}/node-3:drain", 404, message)
    result = trainshed("nodes", "drain", "node-3")
    assert (result.exit_code, message in result.stderr) == (1, True)
