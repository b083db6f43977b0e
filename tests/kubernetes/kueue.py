"""Kueue's part on the lab, as its documentation says it for groups of plain Pods: an admission webhook that
takes Pods in, and a controller that makes a workload of each whole group, admits it as soon as there is quota,
ends what is too much, and lets Pods go.

Kueue itself needs Kubernetes 1.27. Without scheduling gates, which came then, Pods wait here for a scheduler
that there is not, and admission is what gives them a node.
"""

import base64
import contextlib
import itertools
import json
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kubernetes.lab import ADMIN, KubernetesLab
from tests.slurm.nodes import HUB

GROUP, QUEUE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/queue-name"
TOTAL, ROLE = "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/role-hash"
MANAGED = "kueue.x-k8s.io/managed"
_API, _KIND = "kueue.x-k8s.io/v1beta1", "workloads.kueue.x-k8s.io"
_WORKLOADS = f"/apis/{_API}/namespaces/default/workloads"
_PODS = "/api/v1/namespaces/default/pods"
_TAKES_IN = [
    {"op": "add", "path": "/metadata/labels/kueue.x-k8s.io~1managed", "value": "true"},
    {"op": "add", "path": "/metadata/finalizers", "value": [MANAGED]},
    {"op": "add", "path": "/spec/schedulerName", "value": "kueue-admits"},
]


class Kueue:
    """Of one LocalQueue in the namespace `default`. Use as a context manager."""

    def __init__(self, lab: KubernetesLab, directory: Path, *, room: int) -> None:
        self._lab = lab
        self._directory = directory
        self._room = room
        self._over = threading.Event()
        self._nodes = itertools.cycle(lab.nodes)
        #: Groups that a workload was made for.
        self._made: set[str] = set()
        self._lock = threading.Lock()
        #: How many Pods it ended as too many of their group.
        self.excess = 0
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    @contextlib.contextmanager
    def running(self) -> Generator["Kueue"]:
        webhook = self._webhook()
        threads = [
            threading.Thread(target=webhook.serve_forever),
            threading.Thread(target=self._reconcile_for_ever),
        ]
        for thread in threads:
            thread.start()
        try:
            self._apply(_definition(), self._hook(webhook.server_port))
            self._lab.kubectl("wait", "--for=condition=established", f"crd/{_KIND}")
            yield self
        finally:
            self._lab.kubectl("delete", "mutatingwebhookconfiguration", "kueue", check=False)
            self._over.set()
            webhook.shutdown()
            for thread in threads:
                thread.join()
            for pod in self.pods():
                self._let_go(pod)
            self._lab.kubectl("delete", "crd", _KIND)

    def workloads(self) -> list[dict[str, Any]]:
        return self._ask("GET", _WORKLOADS).get("items", [])

    def pods(self, group: str = "") -> list[dict[str, Any]]:
        """Those that were taken in."""
        found = self._ask("GET", f"{_PODS}?labelSelector={MANAGED}%3Dtrue").get("items", [])
        return [one for one in found if group in ("", one["metadata"]["labels"][GROUP])]

    def give(self, room: int) -> None:
        """Quota for that many Pods."""
        with self._lock:
            self._room = room

    def preempt(self, group: str) -> None:
        """Another one goes before it: its quota is taken away, and its Pods end."""
        with self._lock:
            self._say(group, "QuotaReserved", "False", "Pending", "preempted by another workload")
            self._say(group, "Admitted", "False", "NoReservation", "")
            for pod in self.pods(group):
                self._ask(
                    "PATCH",
                    f"{_PODS}/{pod['metadata']['name']}/status",
                    {
                        "status": {
                            "conditions": [
                                {
                                    "type": "TerminationTarget",
                                    "status": "True",
                                    "reason": "WorkloadEvictedDueToPreempted",
                                    "message": "Preempted to accommodate a workload",
                                }
                            ]
                        }
                    },
                )
                self._ask("DELETE", f"{_PODS}/{pod['metadata']['name']}")

    # --- the controller ---

    def _reconcile_for_ever(self) -> None:
        while not self._over.wait(0.1):
            with self._lock:
                self._reconcile()

    def _reconcile(self) -> None:
        groups: dict[str, list[dict[str, Any]]] = {}
        for pod in self.pods():
            groups.setdefault(pod["metadata"]["labels"][GROUP], []).append(pod)
        known = {one["metadata"]["name"]: one for one in self.workloads()}
        for name, pods in sorted(groups.items()):
            total = int(pods[0]["metadata"]["annotations"][TOTAL])
            active = sorted((pod for pod in pods if _is_active(pod)), key=_age)
            for pod in active[total:]:
                self.excess += 1
                self._end(pod)
            active = active[:total]
            if name in known:
                self._run(known[name], total, pods, active)
            elif name in self._made:
                # Somebody has deleted the workload: nothing of it is to go on.
                self._made.discard(name)
                for pod in pods:
                    self._end(pod)
            elif len(active) == total:
                self._make(name, active)
        for name in self._made - groups.keys():
            self._made.discard(name)
            self._ask("DELETE", f"{_WORKLOADS}/{name}")

    def _make(self, name: str, pods: list[dict[str, Any]]) -> None:
        roles: dict[str, int] = {}
        for pod in pods:
            role = pod["metadata"]["annotations"][ROLE]
            roles[role] = roles.get(role, 0) + 1
        assert len(roles) <= 8, "a workload has no more pod sets"
        queue = pods[0]["metadata"]["labels"][QUEUE]
        self._made.add(name)
        self._ask(
            "POST",
            _WORKLOADS,
            {
                "apiVersion": _API,
                "kind": "Workload",
                "metadata": {"name": name},
                "spec": {
                    "queueName": queue,
                    "podSets": [{"name": role, "count": count} for role, count in roles.items()],
                },
            },
        )

    def _run(
        self,
        workload: dict[str, Any],
        total: int,
        pods: list[dict[str, Any]],
        active: list[dict[str, Any]],
    ) -> None:
        name = workload["metadata"]["name"]
        if not _is_admitted(workload):
            used = sum(_size(one) for one in self.workloads() if _is_admitted(one))
            if used + total > self._room or len(active) < total:
                said = "couldn't assign flavors: insufficient unused quota for pods"
                self._say(name, "QuotaReserved", "False", "Pending", said)
                return
            self._say(name, "QuotaReserved", "True", "QuotaReserved", "")
            self._say(name, "Admitted", "True", "Admitted", "")
        for pod in active:
            if "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"]:
                self._place(pod)
        # What others have taken the place of.
        failed = sorted((pod for pod in pods if not _is_active(pod)), key=_age)
        for pod in failed[: max(0, len(active) + len(failed) - total)]:
            self._let_go(pod)
        if sum(pod["status"]["phase"] == "Succeeded" for pod in pods) == total:
            for pod in pods:
                self._let_go(pod)

    def _place(self, pod: dict[str, Any]) -> None:
        avoided = _avoided(pod)
        node = next(node for node in self._nodes if node not in avoided)
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        self._ask("POST", f"{_PODS}/{name}/binding", {**binding, "target": target})

    def _say(self, name: str, kind: str, status: str, reason: str, message: str) -> None:
        found = self._ask("GET", f"{_WORKLOADS}/{name}").get("status", {}).get("conditions", [])
        own = {"type": kind, "status": status, "reason": reason, "message": message}
        if own not in found:
            rest = [one for one in found if one["type"] != kind]
            self._ask("PATCH", f"{_WORKLOADS}/{name}", {"status": {"conditions": [*rest, own]}})

    def _end(self, pod: dict[str, Any]) -> None:
        self._let_go(pod)
        if "deletionTimestamp" not in pod["metadata"]:
            self._ask("DELETE", f"{_PODS}/{pod['metadata']['name']}")

    def _let_go(self, pod: dict[str, Any]) -> None:
        if pod["metadata"].get("finalizers"):
            self._ask(
                "PATCH", f"{_PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}}
            )

    # --- how it speaks ---

    def _apply(self, *documents: dict[str, Any]) -> None:
        for one in documents:
            self._lab.kubectl("apply", "-f", "-", given=json.dumps(one))

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """{}: there is nothing of that name, or another one."""
        request = urllib.request.Request(
            f"https://{self._lab.address(HUB)}:6443{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Authorization": f"Bearer {ADMIN}",
                "Content-Type": "application/json"
                if method != "PATCH"
                else "application/merge-patch+json",
            },
        )
        try:
            with self._opener.open(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as failure:
            if failure.code in (404, 409, 422):
                return {}
            raise

    def _webhook(self) -> ThreadingHTTPServer:
        key, certificate = self._directory / "key.pem", self._directory / "certificate.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", "/CN=kueue", "-addext", f"subjectAltName=IP:{self._lab.outside}"),
                *("-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
        server = ThreadingHTTPServer((self._lab.outside, 0), _Webhook)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        return server

    def _hook(self, port: int) -> dict[str, Any]:
        authority = (self._directory / "certificate.pem").read_bytes()
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "kueue"},
            "webhooks": [
                {
                    "name": "pods.kueue.example.org",
                    "clientConfig": {
                        "url": f"https://{self._lab.outside}:{port}/",
                        "caBundle": base64.b64encode(authority).decode(),
                    },
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ],
                    "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }


class _Webhook(BaseHTTPRequestHandler):
    """Takes every Pod in that names a queue."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        patch = base64.b64encode(json.dumps(_TAKES_IN).encode()).decode()
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": patch,
        }
        answer = json.dumps(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": response,
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


def _definition() -> dict[str, Any]:
    """Of workloads, with whatever they consist of."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    group, version = _API.split("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": _KIND},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Workload", "plural": "workloads", "singular": "workload"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                }
            ],
        },
    }


def _is_active(pod: dict[str, Any]) -> bool:
    """It can run, runs, or has succeeded."""
    if "deletionTimestamp" in pod["metadata"] and "nodeName" not in pod["spec"]:
        return False
    return pod["status"]["phase"] != "Failed"


def _age(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _avoided(pod: dict[str, Any]) -> set[str]:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    return {name for one in _fields(affinity) for name in one["values"]}


def _fields(affinity: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for terms in affinity.values():
        for term in terms["nodeSelectorTerms"]:
            for one in term["matchFields"]:
                assert one["operator"] == "NotIn", "the cluster chooses nodes"
                yield one


def _is_admitted(workload: dict[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions)


def _size(workload: dict[str, Any]) -> int:
    return sum(one["count"] for one in workload["spec"]["podSets"])
