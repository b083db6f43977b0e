"""Pods of finished allocations, over an API in memory. Each is deleted once, and its observed end is
reported."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.kubernetes.unit.conftest import Start
from trainshed.core.failure.evidence import Cause
from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import client, cluster, manifests
from trainshed_cluster.remote.cluster import AgentEnded, AllocationName, NodeNeed

pytestmark = pytest.mark.anyio

NAME = AllocationName("abc", JobUid(7), 1, 0)
NODE = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def pod(phase: str, version: int, **metadata: Any) -> dict[str, Any]:
    states: dict[str, dict[str, Any]] = {
        "Pending": {"waiting": {"reason": "ContainerCreating"}},
        "Running": {"running": {}},
        "Succeeded": {"terminated": {"exitCode": 0}},
    }
    return {
        "metadata": {
            "name": "one",
            "namespace": "default",
            "uid": "one",
            "resourceVersion": str(version),
            "labels": {manifests.SERVICE: "abc"},
            "annotations": {manifests.ALLOCATION: str(NAME)},
            **metadata,
        },
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": phase, "containerStatuses": [{"name": "replica", "state": states[phase]}]},
    }


LEAVING = pod("Running", 3, deletionTimestamp="2026-11-23T00:00:00Z")


class Api:
    """An API server with one Pod. `leaving`: the watch event after the Pod's deletion."""

    def __init__(
        self,
        phase: str = "Running",
        *,
        leaving: tuple[str, dict[str, Any]] = ("DELETED", pod("Succeeded", 3)),
    ) -> None:
        self.phase = phase
        self.leaving = leaving
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.deleted: list[str] = []

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        of_pods = request.url.path.endswith("/pods")
        if request.method == "DELETE":
            self.deleted.append(request.url.path)
            self.events.put_nowait(self.leaving)
            return httpx2.Response(200, json={})
        if "watch" in request.url.params:
            return httpx2.Response(200, content=self._changes(of_pods))
        items = [pod(self.phase, 1)] if of_pods else [NODE]
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": items})

    async def _changes(self, of_pods: bool) -> AsyncIterator[bytes]:
        while of_pods:
            kind, item = await self.events.get()
            yield json.dumps({"type": kind, "object": item}).encode() + b"\n"
        await asyncio.Event().wait()


async def await_no_agents(here: cluster.KubernetesCluster) -> None:
    """Wait until a report contains no agents."""
    async for report in here.watch():
        if not report.agents:
            return


async def test_pod_ending_during_its_release_is_deleted_once(start: Start) -> None:
    """The Pod's agent was shut down. The watch shows the end before the Pod is deleted."""
    api = Api()
    here = await start(api)
    releasing = asyncio.create_task(here.release(NAME))
    # Now the release waits for the end of the agent.
    await asyncio.sleep(0)
    api.events.put_nowait(("MODIFIED", pod("Succeeded", 2)))
    await releasing
    await await_no_agents(here)
    assert api.deleted == ["/api/v1/namespaces/default/pods/one"]


async def test_failed_agent_start_reports_the_container_output(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a Python whose library is missing. Attaching to the container fails with 404 and no
    further reason."""

    async def attach(*_: object) -> bool:
        raise client.ApiFailure(404, "", "")

    monkeypatch.setattr(client.ApiClient, "attach", attach)
    api = Api("Pending")
    here = await start(api)
    over = pod("Succeeded", 3)
    over["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 127, "message": "python3: libpython3.13.so.1.0: no such file\n"}
    }
    api.events.put_nowait(("MODIFIED", pod("Running", 2)))
    allocation = await here.acquire(NAME, [NodeNeed("a", 1, 1.0, 1 << 20)])
    api.events.put_nowait(("MODIFIED", over))
    with pytest.raises(AgentEnded, match=r"exit code 127: python3: libpython3.13.so.1.0: no such"):
        await here.start_agent(allocation, "a", ["true"], b"")


async def test_pod_deleted_by_another_client_counts_as_evicted(start: Start) -> None:
    """spec/failures#losses-on-a-cluster"""
    api = Api()
    here = await start(api)
    api.events.put_nowait(("MODIFIED", LEAVING))
    end = await here.pending_end(NAME)
    assert end is not None and end.loss is Cause.POD_EVICTED
    assert end.why == "Pod one was deleted or evicted, but not by this service"


async def test_pod_deleted_by_this_service_is_not_an_eviction(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to an agent breaks during its release, and the cause is queried."""
    monkeypatch.setattr(cluster, "_EXIT_TIMEOUT", 0.0)
    # A timeout would hide the missing answer.
    monkeypatch.setattr(cluster, "_EVICTION_TIMEOUT", 60.0)
    api = Api(leaving=("MODIFIED", LEAVING))
    here = await start(api)
    querying = asyncio.create_task(here.pending_end(NAME))
    await here.release(NAME)
    assert await querying is None
    assert api.deleted == ["/api/v1/namespaces/default/pods/one"]
