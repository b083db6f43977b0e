"""`trainshed doctor` on a Kubernetes cluster, over an API in memory. Each fault is reported with its
remedy."""

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
    """An API server. `forbidden`: rights that the account lacks."""

    nodes: list[dict[str, Any]] = field(default_factory=lambda: [node("a")])
    forbidden: set[str] = field(default_factory=set[str])
    version: str = f"v{TESTED}"
    #: Answer to the creation of a Pod; None = the Pod is accepted.
    pod_rejection: dict[str, Any] | None = None
    created_objects: list[Any] = field(default_factory=list[Any])
    #: Kueue manages new Pods.
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
            assert request.url.params["dryRun"] == "All", "the request must be a dry run"
            self.created_objects.append(json.loads(request.content))
            if self.pod_rejection:
                return httpx2.Response(self.pod_rejection["code"], json=self.pod_rejection)
            if self.has_kueue:
                self.created_objects[-1]["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
            return httpx2.Response(201, json=self.created_objects[-1])
        assert path == "/api/v1/nodes", path
        return httpx2.Response(200, json={"metadata": {}, "items": self.nodes})


async def examine(cluster: Cluster, directory: Path, **settings: Any) -> dict[str, Finding]:
    own = parse({**TABLE, "kubeconfig": str(kubeconfig.write(directory)), **settings})
    client = ApiClient(own, httpx2.MockTransport(cluster.answer))
    findings = [finding async for finding in Examination(own, client).findings()]
    await client.close()
    return {finding.about: finding for finding in findings}


async def test_doctor_reports_no_problem_for_a_correctly_configured_cluster(tmp_path: Path) -> None:
    cluster = Cluster([node("a", **{"nvidia.com/gpu": "4"}), node("b", "dedicated")])
    findings = await examine(cluster, tmp_path)
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}
    assert findings["Kubernetes API"].text == f"Kubernetes {TESTED} at http://api.invalid."
    assert findings["Kubernetes nodes"].text == "1 of 2 accept jobs."
    assert findings["NVIDIA_TESLA_T4"].text == "nvidia.com/gpu on 1 nodes."
    [pod] = cluster.created_objects
    assert pod["spec"]["containers"][0]["image"] == TABLE["image"]


async def test_untested_kubernetes_version_is_reported(tmp_path: Path) -> None:
    findings = await examine(Cluster(version="v1.33.1"), tmp_path)
    assert findings["Kubernetes API"].cause == f"Trainshed is tested only with {TESTED}."


@pytest.mark.parametrize(
    ("right", "verdict", "text"),
    [
        ("watch nodes *", Verdict.BAD, "may not watch nodes of the cluster: no job can run"),
        ("create pods jobs", Verdict.BAD, "may not create pods of namespace jobs: no job can run"),
        ("create pods/attach jobs", Verdict.BAD, "may not create pods/attach of namespace jobs"),
        ("watch pods *", Verdict.BAD, "may not watch pods of the whole cluster: no job can run"),
        ("list pods *", Verdict.LESS, "resources of other Pods are not counted"),
    ],
)
async def test_doctor_reports_a_missing_kubernetes_permission(
    right: str, verdict: Verdict, text: str, tmp_path: Path
) -> None:
    findings = await examine(Cluster(forbidden={right}), tmp_path, namespaces={"*": "jobs"})
    assert findings["Kubernetes rights"].verdict is verdict
    assert text in findings["Kubernetes rights"].text
    assert "deploy/chart" in findings["Kubernetes rights"].remedy


async def test_doctor_quotes_the_reason_why_kubernetes_rejects_a_pod(tmp_path: Path) -> None:
    message = 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'
    refusal = {"code": 403, "reason": "Forbidden", "message": message}
    findings = await examine(Cluster(pod_rejection=refusal), tmp_path, namespaces={"*": "jobs"})
    assert findings["Pods in jobs"].verdict is Verdict.BAD
    assert "violates PodSecurity" in findings["Pods in jobs"].text


async def test_doctor_reports_unusable_nodes_and_missing_devices(tmp_path: Path) -> None:
    findings = await examine(Cluster([node("a", "dedicated")]), tmp_path)
    assert findings["Kubernetes nodes"].verdict is Verdict.BAD
    findings = await examine(Cluster(), tmp_path)
    assert findings["NVIDIA_TESLA_T4"].verdict is Verdict.LESS


def test_doctor_reports_wrong_settings_and_a_service_address_that_pods_cannot_reach(tmp_path: Path) -> None:
    [wrong] = examine_kubernetes({"lease": 1})
    assert "image: it is missing" in wrong.text and "lease" in wrong.text
    absent = str(tmp_path / "absent")
    table = {**TABLE, "kubeconfig": absent, "address": "127.0.0.1"}
    api, address = examine_kubernetes(table)
    assert (api.verdict, address.verdict) == (Verdict.BAD, Verdict.BAD)
    assert absent in api.text


async def test_doctor_reports_missing_kueue_admission_and_permissions(tmp_path: Path) -> None:
    own = {"queue": "kueue", "local_queue": "users"}
    findings = await examine(Cluster(), tmp_path, **own)
    assert findings["Pods in default"].verdict is Verdict.BAD
    assert "would start without Kueue's admission" in findings["Pods in default"].text
    lacking = Cluster(has_kueue=True, forbidden={"watch workloads default"})
    findings = await examine(lacking, tmp_path, **own)
    assert findings["Pods in default"].verdict is Verdict.GOOD
    assert "may not watch workloads of namespace default" in findings["Kubernetes rights"].text
