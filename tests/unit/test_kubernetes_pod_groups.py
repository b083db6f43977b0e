"""The Pods that an attempt begins with as one PodGroup of Kubernetes, over an API in memory."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.unit import kubeconfig
from tests.unit.test_kubernetes_kueue import GROUP, HOLDS, NEEDS, Api
from trainshed.core.names import JobUid
from trainshed.engines.kubernetes import admission, client, cluster, manifests, pod_groups
from trainshed.engines.kubernetes.cluster import KubernetesCluster
from trainshed.engines.kubernetes.settings import parse
from trainshed.engines.remote.cluster import ClusterRefused, HoldName

pytestmark = pytest.mark.anyio

PATH = f"{pod_groups.API}/namespaces/default/podgroups"


class Groups(Api):
    """An API server whose scheduler knows PodGroups. `served`: what it has of their API's version."""

    def __init__(self, served: list[str] | None = None, *, refuses: int = 0) -> None:
        super().__init__(manages=False)
        self.kinds["podgroups"] = {}
        self._events["podgroups"] = []
        self.served = served
        self.refuses = refuses
        self.asked: list[str] = []

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == pod_groups.API:
            if self.served is None:
                return httpx2.Response(404, json={"reason": "NotFound"})
            return httpx2.Response(
                200, json={"resources": [{"name": name} for name in self.served]}
            )
        if path == PATH and request.method == "POST":
            made = json.loads(request.content)
            name = made["metadata"]["name"]
            self.asked.append(f"make {name}")
            if self.refuses:
                status = {"code": self.refuses, "reason": "Forbidden", "message": "not for you"}
                return httpx2.Response(self.refuses, json=status)
            if name in self.kinds["podgroups"]:
                return httpx2.Response(409, json={"reason": "AlreadyExists"})
            self.kinds["podgroups"][name] = made
            return httpx2.Response(201, json=made)
        return await super().answer(request)


@asynccontextmanager
async def started(
    api: Groups, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> AsyncGenerator[KubernetesCluster]:
    made = partial(client.ApiClient, transport=httpx2.MockTransport(api.answer))
    monkeypatch.setattr(cluster, "ApiClient", made)
    monkeypatch.setattr(admission, "_LINGER_SECONDS", 0.01)
    monkeypatch.setattr(pod_groups, "_STRAY_SECONDS", 0.01)
    table = {"image": "i:1", "pod_groups": True, "priority_class": "batch", **more}
    settings = parse({**table, "kubeconfig": str(kubeconfig.written(directory))})
    here = KubernetesCluster(settings, "abc", command=["true"], cache="/cache")
    try:
        async with asyncio.timeout(10):
            await here.start()
            yield here
    finally:
        await here.close()


def nodes(api: Groups) -> None:
    """Have two, on which Pods may start."""
    for need in NEEDS:
        api.kinds.setdefault("nodes", {})[need.node] = {
            "metadata": {"name": need.node, "uid": need.node, "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }


async def pods(api: Groups, count: int) -> list[dict[str, Any]]:
    async with api.changed:
        await api.changed.wait_for(lambda: len(api.kinds["pods"]) >= count)
    return list(api.kinds["pods"].values())


async def gone(api: Groups, name: str) -> None:
    async with api.changed:
        await api.changed.wait_for(lambda: name not in api.kinds["podgroups"])


async def test_the_pods_that_an_attempt_begins_with_are_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made once, before them, and deleted after the last; who follows one of them later is in none."""
    api = Groups(["workloads", "podgroups"])
    nodes(api)
    follower = HoldName("abc", JobUid(7), 1, 2)
    async with started(api, tmp_path, monkeypatch) as here:
        asked = [
            asyncio.create_task(here.acquire(name, [need]))
            for name, need in zip(HOLDS, NEEDS, strict=True)
        ]
        for pod in await pods(api, 2):
            assert pod["spec"]["schedulingGroup"] == {"podGroupName": GROUP}
        assert api.asked == [f"make {GROUP}"]
        [made] = api.kinds["podgroups"].values()
        assert made["apiVersion"] == "scheduling.k8s.io/v1beta1" and made["kind"] == "PodGroup"
        assert made["spec"] == {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "priorityClassName": "batch",
        }
        assert made["metadata"]["labels"][manifests.SERVICE] == "abc"
        await api.admit()
        await asyncio.gather(*asked)
        await here.give_back(HOLDS[0])
        following = asyncio.create_task(here.acquire(follower, NEEDS[:1]))
        async with api.changed:
            await api.changed.wait_for(lambda: "job-0-1-2" in api.kinds["pods"])
        assert "schedulingGroup" not in api.kinds["pods"]["job-0-1-2"]["spec"]
        await api.admit()
        await following
        await here.give_back(HOLDS[1])
        assert GROUP not in api.deleted
        await here.give_back(follower)
        await gone(api, GROUP)
    assert api.asked == [f"make {GROUP}"]


async def test_a_replica_that_is_alone_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Groups(["podgroups"])
    nodes(api)
    alone = msgspec.structs.replace(NEEDS[0], gang_size=1)
    async with started(api, tmp_path, monkeypatch) as here:
        asked = asyncio.create_task(here.acquire(HOLDS[0], [alone]))
        [pod] = await pods(api, 1)
        assert "schedulingGroup" not in pod["spec"]
        await api.admit()
        await asked
        await here.give_back(HOLDS[0])
    assert not api.asked


async def test_groups_of_before_that_nobody_came_back_for_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Groups(["podgroups"])
    api.kinds["podgroups"]["trainshed-abc-3-1"] = {
        "metadata": {"name": "trainshed-abc-3-1", "namespace": "default", "uid": "u"}
    }
    async with started(api, tmp_path, monkeypatch):
        await gone(api, "trainshed-abc-3-1")


@pytest.mark.parametrize("served", [None, ["priorityclasses"]])
async def test_a_cluster_without_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[str] | None
) -> None:
    with pytest.raises(ClusterRefused, match=r"pod_groups = true, and .* gate GenericWorkload"):
        async with started(Groups(served), tmp_path, monkeypatch):
            pass


async def test_a_group_that_is_not_taken_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Groups(["podgroups"], refuses=403)
    nodes(api)
    async with started(api, tmp_path, monkeypatch) as here:
        with pytest.raises(
            ClusterRefused, match=rf"PodGroup {GROUP} in namespace default: .*not for you"
        ):
            await here.acquire(HOLDS[0], NEEDS[:1])
    assert not api.kinds["pods"]


async def test_kueue_needs_none() -> None:
    with pytest.raises(ValueError, match="pod_groups: Kueue admits a job as a whole by itself"):
        parse({"image": "i:1", "queue": "kueue", "local_queue": "users", "pod_groups": True})
