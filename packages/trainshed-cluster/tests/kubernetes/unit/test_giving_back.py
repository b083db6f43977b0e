"""What becomes of a Pod whose work is over, over an API in memory: it is deleted once, and its end believed
where it was seen."""

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
from trainshed_cluster.remote.cluster import AgentEnded, HoldName, NodeNeed

pytestmark = pytest.mark.anyio

NAME = HoldName("abc", JobUid(7), 1, 0)
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
            "annotations": {manifests.HOLD: str(NAME)},
            **metadata,
        },
        "spec": {"nodeName": "a", "containers": []},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "replica", "state": states[phase]}],
        },
    }


LEAVING = pod("Running", 3, deletionTimestamp="2026-11-23T00:00:00Z")


class Api:
    """With one Pod. `leaving`: what is told of the Pod once it is deleted."""

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


async def not_there(here: cluster.KubernetesCluster) -> None:
    """Until no agent is."""
    async for report in here.watch():
        if not report.agents:
            return


async def test_a_pod_that_ends_while_it_is_given_back_is_deleted_once(start: Start) -> None:
    """Its agent was told to leave, which the watch tells before the Pod is deleted."""
    api = Api()
    here = await start(api)
    giving_back = asyncio.create_task(here.give_back(NAME))
    # As soon as it waits for the end of the agent.
    await asyncio.sleep(0)
    api.events.put_nowait(("MODIFIED", pod("Succeeded", 2)))
    await giving_back
    await not_there(here)
    assert api.deleted == ["/api/v1/namespaces/default/pods/one"]


async def test_a_process_that_ended_before_its_agent_is_told_by_its_last_words(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a Python that lacks its library; the API says 404 and nothing else when it is attached to."""

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
    hold = await here.acquire(NAME, [NodeNeed("a", 1, 1.0, 1 << 20)])
    api.events.put_nowait(("MODIFIED", over))
    with pytest.raises(AgentEnded, match=r"exit code 127: python3: libpython3.13.so.1.0: no such"):
        await here.start_agent(hold, "a", ["true"], b"")


async def test_a_pod_that_others_delete_is_lost_to_them(start: Start) -> None:
    """spec/failures#losses-on-a-cluster"""
    api = Api()
    here = await start(api)
    api.events.put_nowait(("MODIFIED", LEAVING))
    end = await here.ending(NAME)
    assert end is not None and end.loss is Cause.POD_EVICTED
    assert end.why == "Pod one was deleted, or evicted from its node, and not by this service"


async def test_a_pod_that_this_service_deletes_is_not_told_as_deleted_by_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's line breaks meanwhile, and why is asked."""
    monkeypatch.setattr(cluster, "_LEAVING_SECONDS", 0.0)
    # Nothing told by then is no answer.
    monkeypatch.setattr(cluster, "_TELLING_SECONDS", 60.0)
    api = Api(leaving=("MODIFIED", LEAVING))
    here = await start(api)
    asking = asyncio.create_task(here.ending(NAME))
    await here.give_back(NAME)
    assert await asking is None
    assert api.deleted == ["/api/v1/namespaces/default/pods/one"]
