"""Pods whose creation is confirmed late, as by a busy API server. The watch has already shown their later
states."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.kubernetes.unit.conftest import Start
from tests.kubernetes.unit.test_release import NAME, NODE, pod
from trainshed_cluster.kubernetes import client
from trainshed_cluster.remote.cluster import AgentEnded, NodeNeed

pytestmark = pytest.mark.anyio

NEED = NodeNeed("a", 1, 1.0, 1 << 20)


class Api:
    """Answers the creation of a Pod after its watch has shown `events`."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self._script = events
        self._events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._read = asyncio.Event()
        self.calls: list[str] = []

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "GET":
            self.calls.append(request.method)
        if request.method == "POST":
            for event in self._script:
                self._events.put_nowait(event)
            await self._read.wait()
            return httpx2.Response(201, json=pod("Pending", 1))
        if "watch" in request.url.params:
            of_pods = request.url.path.endswith("/pods")
            return httpx2.Response(200, content=self._changes(of_pods))
        items = [] if request.url.path.endswith("/pods") else [NODE]
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": items})

    async def _changes(self, of_pods: bool) -> AsyncIterator[bytes]:
        while of_pods:
            kind, item = await self._events.get()
            yield json.dumps({"type": kind, "object": item}).encode() + b"\n"
            # The next chunk is requested after this one was processed.
            if self._events.empty():
                self._read.set()
        await asyncio.Event().wait()


async def test_pod_that_runs_before_the_create_response_arrives_is_used_and_not_replaced(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch after a new list never shows an earlier state of the Pod."""
    attached: list[str] = []

    async def attach(_: object, path: str, *__: object) -> bool:
        attached.append(path)
        return True

    monkeypatch.setattr(client.ApiClient, "attach", attach)
    api = Api(("ADDED", pod("Running", 2)))
    here = await start(api)
    async with asyncio.timeout(60):
        allocation = await here.acquire(NAME, [NEED])
        await here.start_agent(allocation, "a", ["true"], b"")
    assert api.calls == ["POST"], "it was replaced"
    assert attached == ["/api/v1/namespaces/default/pods/one"]


async def test_pod_deleted_before_the_create_response_arrives_fails_the_allocation(start: Start) -> None:
    api = Api(("ADDED", pod("Pending", 1)), ("DELETED", pod("Pending", 2)))
    here = await start(api)
    async with asyncio.timeout(60):
        with pytest.raises(AgentEnded):
            await here.acquire(NAME, [NEED])
