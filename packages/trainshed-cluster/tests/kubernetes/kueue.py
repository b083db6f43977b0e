"""Kueue's part on the lab, as its documentation says it for groups of plain Pods: a controller that takes
Pods in, makes a workload of each whole group, admits it when there is quota, ends what is too much, and lets
Pods go.

Kueue itself needs Kubernetes 1.27. Without scheduling gates, which came then, Pods wait here for a scheduler
that there is not, and admission is what gives them a node. It takes Pods in just after they are made.
"""

import contextlib
import itertools
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from typing import Any

from tests.kubernetes.lab import ADMIN, KubernetesLab
from tests.slurm.nodes import HUB

GROUP, QUEUE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/queue-name"
TOTAL, ROLE = "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/role-hash"
MANAGED = "kueue.x-k8s.io/managed"
_API, _KIND = "kueue.x-k8s.io/v1beta1", "workloads.kueue.x-k8s.io"
_WORKLOADS = f"/apis/{_API}/namespaces/default/workloads"
_PODS = "/api/v1/namespaces/default/pods"
SCHEDULER = "kueue-admits"
"""Whom Pods wait for, and there is none of that name."""


class Kueue:
    """Of one LocalQueue in the namespace `default`. Use as a context manager."""

    def __init__(self, lab: KubernetesLab, *, quota: int) -> None:
        """`quota`: in Pods."""
        self._lab = lab
        self._quota = quota
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
        self._lab.kubectl("apply", "-f", "-", given=json.dumps(_definition()))
        self._lab.kubectl("wait", "--for=condition=established", f"crd/{_KIND}")
        controller = threading.Thread(target=self._reconcile_for_ever)
        controller.start()
        try:
            yield self
        finally:
            self._over.set()
            controller.join()
            for pod in self.pods():
                self._let_go(pod)
            self._lab.kubectl("delete", "crd", _KIND)

    def workloads(self) -> list[dict[str, Any]]:
        return self._ask("GET", _WORKLOADS).get("items", [])

    def pods(self, group: str = "") -> list[dict[str, Any]]:
        """Those that were taken in."""
        found = self._ask("GET", f"{_PODS}?labelSelector={MANAGED}%3Dtrue").get("items", [])
        return [one for one in found if group in ("", one["metadata"]["labels"][GROUP])]

    def give(self, quota: int) -> None:
        """Have quota for that many Pods from now on."""
        with self._lock:
            self._quota = quota

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
            # An API server that is slow is asked again.
            with self._lock, contextlib.suppress(OSError):
                self._reconcile()

    def _reconcile(self) -> None:
        for pod in self._ask("GET", f"{_PODS}?labelSelector={GROUP},!{MANAGED}").get("items", []):
            own = {"labels": {MANAGED: "true"}, "finalizers": [MANAGED]}
            self._ask("PATCH", f"{_PODS}/{pod['metadata']['name']}", {"metadata": own})
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
            if used + total > self._quota or len(active) < total:
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
