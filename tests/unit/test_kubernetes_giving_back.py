"""What becomes of a Pod whose work is over, over an API in memory: it is deleted once."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit import kubeconfig
from trainshed.core.names import JobUid
from trainshed.engines.kubernetes import client, cluster, manifests
from trainshed.engines.kubernetes.settings import parse
from trainshed.engines.remote.cluster import HoldName

pytestmark = pytest.mark.anyio

NAME = HoldName("abc", JobUid(7), 1, 0)


def pod(phase: str, version: int) -> dict[str, Any]:
    state: dict[str, Any] = (
        {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
    )
    return {
        "metadata": {
            "name": "one",
            "namespace": "default",
            "uid": "one",
            "resourceVersion": str(version),
            "labels": {manifests.SERVICE: "abc"},
            "annotations": {manifests.HOLD: str(NAME)},
        },
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": phase, "containerStatuses": [{"name": "replica", "state": state}]},
    }


class Api:
    """With one Pod, which runs."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.deleted: list[str] = []

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        of_pods = request.url.path.endswith("/pods")
        if request.method == "DELETE":
            self.deleted.append(request.url.path)
            self.events.put_nowait(("DELETED", pod("Succeeded", 3)))
            return httpx2.Response(200, json={})
        if "watch" in request.url.params:
            return httpx2.Response(200, content=self._changes(of_pods))
        items = [pod("Running", 1)] if of_pods else []
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": items})

    async def _changes(self, of_pods: bool) -> AsyncIterator[bytes]:
        while of_pods:
            kind, item = await self.events.get()
            yield json.dumps({"type": kind, "object": item}).encode() + b"\n"
        await asyncio.Event().wait()


async def test_a_pod_that_ends_while_it_is_given_back_is_deleted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent was told to leave, which the watch tells before the Pod is deleted."""
    api = Api()
    made = partial(client.ApiClient, transport=httpx2.MockTransport(api.answer))
    monkeypatch.setattr(cluster, "ApiClient", made)
    settings = parse({"image": "i:1", "kubeconfig": str(kubeconfig.written(tmp_path))})
    here = cluster.KubernetesCluster(settings, "abc", command=["true"], cache="/cache")
    await here.start()
    giving_back = asyncio.create_task(here.give_back(NAME))
    async with asyncio.timeout(10):
        # As soon as it waits for the end of the agent.
        await asyncio.sleep(0)
        api.events.put_nowait(("MODIFIED", pod("Succeeded", 2)))
        await giving_back
        async for report in here.watch():
            if not report.agents:
                break
    await here.close()
    assert api.deleted == ["/api/v1/namespaces/default/pods/one"]
