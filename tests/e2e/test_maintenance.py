"""Nodes under maintenance (spec/failures#maintenance): replicas get SIGTERM with grace and go on elsewhere,
whatever happens to the service meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import running as services
from tests.e2e.processes import leftovers, new_mark, wait_until_gone
from tests.e2e.running import Service, running, submit
from tests.e2e.stories import (
    BEGUN,
    PLACE,
    PRIMARY,
    WORKER,
    Verdict,
    at,
    pools,
    process_of,
    run,
    story_of,
    until,
)

FIRST, SECOND = "local-0", "local-1"
WAITS = "import signal\nwhile True: signal.pause()"
LEAVES = """
import os, signal
def leave(*_):
    print('saving', flush=True)
    open('saved', 'w')
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
"""
"""A program that, asked to stop, saves its state and exits 0, as good ones do."""
MOVED = [Verdict("replica_lost", "replica_restarts", WORKER, "1/5")]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two nodes, and a grace that is long enough to save within on a busy machine."""
    data = tmp_path_factory.mktemp("maintenance")
    config = data / "settings.toml"
    config.write_text("grace = 4\nnodes = 2\n")
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


@pytest.fixture(autouse=True)
def ready(service: Service) -> Iterator[None]:
    yield
    for node in (FIRST, SECOND):
        service.call("POST", f"/trainshed/v1/nodes/{node}:undrain", {})


def drain(service: Service, node: str, reason: str = "") -> dict[str, Any]:
    return service.call("POST", f"/trainshed/v1/nodes/{node}:drain", {"reason": reason})


def undrain(service: Service, node: str) -> dict[str, Any]:
    return service.call("POST", f"/trainshed/v1/nodes/{node}:undrain", {})


def nodes(service: Service) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in service.call("GET", "/trainshed/v1/nodes")["nodes"]}


def replicas(service: Service, job_id: str) -> dict[str, dict[str, Any]]:
    views = service.call("GET", f"/trainshed/v1/jobs/{job_id}")["replicas"]
    return {replica["id"]: replica for replica in views}


def trainshed(service: Service, *args: str) -> str:
    """The command line, as a user has it."""
    return services.trainshed(*args, data=service.data).stdout


def test_a_drained_node_s_replicas_move_and_the_others_stay(service: Service, gate: Path) -> None:
    """spec/failures#lost-replicas: SIGTERM with grace; restarted on another node with the same hostname and
    an empty working directory. By the command line, which waits until the node is free."""
    mark = new_mark()
    job_id = submit(service, pools(at(gate), f"{LEAVES}{PLACE}{WAITS}", mark=mark))
    log = service.follow(job_id, WORKER)
    before = until(log, "up")
    there = {replica: view["node"] for replica, view in replicas(service, job_id).items()}
    assert there == {PRIMARY: FIRST, WORKER: SECOND}
    until(service.follow(job_id, PRIMARY), BEGUN)
    primary, worker = process_of(mark, PRIMARY), process_of(mark, WORKER)
    printed = trainshed(service, "nodes", "drain", SECOND, "--reason", "a new disk", "--wait")
    assert "1 replica there is asked to leave" in printed and f"{SECOND}  is free" in printed
    wait_until_gone([worker])
    after = until(log, "up")
    assert after[0] == "saving"
    assert "found []" in after, "the working directory came along"
    host = before[-1].split(" ", 2)[1]
    assert after[-1].split(" ", 2)[1] == host
    assert after[-1].rsplit(" {", 1)[-1] == before[-1].rsplit(" {", 1)[-1], "another cluster"
    assert replicas(service, job_id)[WORKER]["node"] == FIRST
    assert process_of(mark, PRIMARY) == primary
    node = nodes(service)[SECOND]
    assert (node["condition"], node["replicas"]) == ("DRAINED", [])
    assert "a new disk" in node["cause"]
    assert "DRAINED" in trainshed(service, "nodes", "list")

    # It takes no more work until it is given back.
    elsewhere = story_of(service, run(service, "pass", (WAITS, 3)))
    assert {replica["node"] for replica in elsewhere.view["replicas"]} == {FIRST}
    assert "takes work again" in trainshed(service, "nodes", "drain", SECOND, "--undo")
    again = story_of(service, run(service, "pass", WAITS))
    assert {replica["node"] for replica in again.view["replicas"]} == {FIRST, SECOND}

    gate.write_text("")
    story = story_of(service, job_id)
    assert story.state == "SUCCEEDED"
    assert story.verdicts == MOVED
    assert story.begun == {PRIMARY: 1, WORKER: 2}
    (entry,) = story.of_kind("replica_asked_to_leave")
    assert "a new disk" in entry["message"]
    (placed,) = story.of_kind("replica_placed")
    assert placed["details"]["node"] == FIRST
    details = story.of_kind("verdict")[0]["details"]
    assert (details["cause"], details["exit_code"]) == ("left", 0)
