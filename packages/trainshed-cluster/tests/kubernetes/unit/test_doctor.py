"""`trainshed doctor` on a Kubernetes cluster, over an API in memory: each fault with what mends it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kubernetes.unit import kubeconfig
from trainshed.engines.findings import Finding, Verdict
from trainshed_cluster.kubernetes.client import ApiClient
from trainshed_cluster.kubernetes.doctor import TESTED, Examination, examine_kubernetes
from trainshed_cluster.kubernetes.settings import parse

pytestmark = pytest.mark.anyio

TABLE: dict[str, Any] = {
    "image": "registry.example/base:3.11",
    "address": "10.1.2.3",
    "accelerators": {"NVIDIA_TESLA_T4": {}},
}


def node(name: str, *taints: str, **allocatable: str) -> dict[str, Any]:
    with_taints = [{"key": key, "effect": "NoSchedule"} for key in taints]
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {"taints": with_taints},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", **allocatable}},
    }


@dataclass
class Cluster:
    """An API server. `forbidden`: what the account may not do."""

    nodes: list[dict[str, Any]] = field(default_factory=lambda: [node("a")])
    forbidden: set[str] = field(default_factory=set[str])
    version: str = f"v{TESTED}"
    #: What it says to a Pod; None = it takes it.
    refuses_pods: dict[str, Any] | None = None
    made: list[Any] = field(default_factory=list[Any])
    #: It takes Pods in.
    has_kueue: bool = False

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == "/version":
            return httpx2.Response(200, json={"gitVersion": self.version})
        if path.endswith("selfsubjectaccessreviews"):
            attributes = json.loads(request.content)["spec"]["resourceAttributes"]
            part = f"/{attributes['subresource']}" if "subresource" in attributes else ""
            where = attributes.get("namespace", "*")
            right = f"{attributes['verb']} {attributes['resource']}{part} {where}"
            groups = {"workloads": "kueue.x-k8s.io"}
            assert attributes.get("group", "") == groups.get(attributes["resource"], "")
            return httpx2.Response(201, json={"status": {"allowed": right not in self.forbidden}})
        if path.endswith("/pods"):
            assert request.url.params["dryRun"] == "All", "nothing is made"
            self.made.append(json.loads(request.content))
            if self.refuses_pods:
                return httpx2.Response(self.refuses_pods["code"], json=self.refuses_pods)
            if self.has_kueue:
                self.made[-1]["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
            return httpx2.Response(201, json=self.made[-1])
        assert path == "/api/v1/nodes", path
        return httpx2.Response(200, json={"metadata": {}, "items": self.nodes})


async def examined(cluster: Cluster, directory: Path, **settings: Any) -> dict[str, Finding]:
    own = parse({**TABLE, "kubeconfig": str(kubeconfig.written(directory)), **settings})
    client = ApiClient(own, httpx2.MockTransport(cluster.answer))
    findings = [finding async for finding in Examination(own, client).findings()]
    await client.close()
    return {finding.about: finding for finding in findings}


async def test_a_cluster_that_has_everything(tmp_path: Path) -> None:
    cluster = Cluster([node("a", **{"nvidia.com/gpu": "4"}), node("b", "dedicated")])
    findings = await examined(cluster, tmp_path)
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}
    assert findings["Kubernetes API"].text == f"Kubernetes {TESTED} at http://api.invalid."
    assert findings["Kubernetes nodes"].text == "1 of 2 take jobs."
    assert findings["NVIDIA_TESLA_T4"].text == "nvidia.com/gpu on 1 nodes."
    [pod] = cluster.made
    assert pod["spec"]["containers"][0]["image"] == TABLE["image"]


async def test_another_version_is_said_not_to_be_tested(tmp_path: Path) -> None:
    findings = await examined(Cluster(version="v1.33.1"), tmp_path)
    assert findings["Kubernetes API"].cause == f"It is tested on {TESTED} alone."


@pytest.mark.parametrize(
    ("right", "verdict", "text"),
    [
        ("watch nodes *", Verdict.BAD, "may not watch nodes of the cluster: no job can run"),
        ("create pods jobs", Verdict.BAD, "may not create pods of namespace jobs: no job can run"),
        ("create pods/attach jobs", Verdict.BAD, "may not create pods/attach of namespace jobs"),
        ("watch pods *", Verdict.BAD, "may not watch pods of the whole cluster: no job can run"),
        ("list pods *", Verdict.LESS, "what others take of nodes is not counted"),
    ],
)
async def test_a_right_that_is_missing_is_named(
    right: str, verdict: Verdict, text: str, tmp_path: Path
) -> None:
    findings = await examined(Cluster(forbidden={right}), tmp_path, namespaces={"*": "jobs"})
    assert findings["Kubernetes rights"].verdict is verdict
    assert text in findings["Kubernetes rights"].text
    assert "deploy/chart" in findings["Kubernetes rights"].remedy


async def test_what_keeps_pods_away_is_told_in_kubernetes_words(tmp_path: Path) -> None:
    message = 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'
    refusal = {"code": 403, "reason": "Forbidden", "message": message}
    findings = await examined(Cluster(refuses_pods=refusal), tmp_path, namespaces={"*": "jobs"})
    assert findings["Pods in jobs"].verdict is Verdict.BAD
    assert "violates PodSecurity" in findings["Pods in jobs"].text


async def test_nodes_that_take_nothing_and_devices_that_are_nowhere(tmp_path: Path) -> None:
    findings = await examined(Cluster([node("a", "dedicated")]), tmp_path)
    assert findings["Kubernetes nodes"].verdict is Verdict.BAD
    findings = await examined(Cluster(), tmp_path)
    assert findings["NVIDIA_TESLA_T4"].verdict is Verdict.LESS


def test_settings_and_an_address_that_nobody_reaches(tmp_path: Path) -> None:
    [wrong] = examine_kubernetes({"lease": 1})
    assert "image: it is missing" in wrong.text and "lease" in wrong.text
    absent = str(tmp_path / "absent")
    table = {**TABLE, "kubeconfig": absent, "address": "127.0.0.1"}
    api, address = examine_kubernetes(table)
    assert (api.verdict, address.verdict) == (Verdict.BAD, Verdict.BAD)
    assert absent in api.text


async def test_pods_that_kueue_would_not_take_in_and_its_rights(tmp_path: Path) -> None:
    own = {"queue": "kueue", "local_queue": "users"}
    findings = await examined(Cluster(), tmp_path, **own)
    assert findings["Pods in default"].verdict is Verdict.BAD
    assert "it would start as it likes" in findings["Pods in default"].text
    lacking = Cluster(has_kueue=True, forbidden={"watch workloads default"})
    findings = await examined(lacking, tmp_path, **own)
    assert findings["Pods in default"].verdict is Verdict.GOOD
    assert "may not watch workloads of namespace default" in findings["Kubernetes rights"].text
