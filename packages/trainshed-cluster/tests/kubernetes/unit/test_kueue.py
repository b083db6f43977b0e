"""Jobs in Kueue's queue, over an API in memory: one workload for the Pods of an attempt, its wait reason and
its end."""

import asyncio
import json
from asyncio import Task
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec
import pytest

from tests.kubernetes.unit.conftest import Start
from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause
from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import admission, kueue, states
from trainshed_cluster.kubernetes.cluster import KubernetesCluster
from trainshed_cluster.kubernetes.objects import Pod, Workload
from trainshed_cluster.kubernetes.settings import parse
from trainshed_cluster.remote.cluster import Allocation, AllocationName, ClusterRefused, NodeNeed

pytestmark = pytest.mark.anyio

ALLOCATIONS = [AllocationName("abc", JobUid(7), 1, index) for index in range(2)]
NEEDS = [
    NodeNeed("wish", 1, 1.0, 1 << 30, replica=f"workerpool0-{n}", hostname=f"job-{n}", gang_size=2)
    for n in range(2)
]
GROUP = "trainshed-abc-7-1"
QUEUE = {"queue": "kueue", "local_queue": "users"}


def workload(name: str, made: int = 0, **conditions: tuple[str, str, str]) -> dict[str, Any]:
    """Return a workload. `conditions`: status, reason and message of each. `made`: the minute of its
    creation."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "creationTimestamp": f"2026-01-01T00:{made:02}:00Z",
        },
        "spec": {"queueName": "users"},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": message}
                for kind, (status, reason, message) in conditions.items()
            ]
        },
    }


def parse_workload(document: dict[str, Any]) -> Workload:
    return msgspec.convert(document, Workload, strict=False)


class Api:
    """An API server with Kueue, which manages Pods at their creation. `kinds`: the existing objects, by the
    last part of their path."""

    def __init__(self, *, manages: bool = True, has_kueue: bool = True) -> None:
        self.manages, self.has_kueue = manages, has_kueue
        self.kinds: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "workloads": {}}
        self.deleted: list[str] = []
        self.wait_for_node = asyncio.Condition()
        self._events: dict[str, list[bytes]] = {"pods": [], "workloads": []}
        self._version = 1

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        *_, kind = path.split("/")
        if path == kueue.API:
            api_group = {"preferredVersion": {"groupVersion": "x", "version": "v1beta2"}}
            return httpx2.Response(200 if self.has_kueue else 404, json=api_group)
        if request.method == "DELETE":
            *_, kind, name = path.split("/")
            if name not in self.kinds[kind]:
                return httpx2.Response(404, json={"reason": "NotFound"})
            self.deleted.append(name)
            await self.put("DELETED", kind, self.kinds[kind].pop(name))
            return httpx2.Response(200, json={})
        if request.method == "POST" and kind == "pods":
            made = json.loads(request.content)
            made["metadata"]["uid"] = made["metadata"]["name"]
            if self.manages:
                made["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
                made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
            await self.put("ADDED", "pods", made)
            return httpx2.Response(201, json=made)
        if request.method == "POST":
            return httpx2.Response(201, json={"metadata": {"name": "x"}})
        if "watch" in request.url.params:
            return httpx2.Response(200, content=self._changes(kind))
        items = list(self.kinds.get(kind, {}).values())
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": items})

    async def put(self, what: str, kind: str, item: dict[str, Any]) -> None:
        async with self.wait_for_node:
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            if what != "DELETED":
                self.kinds[kind][item["metadata"]["name"]] = item
            self._events[kind].append(json.dumps({"type": what, "object": item}).encode() + b"\n")
            self.wait_for_node.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.wait_for_node:
            await self.wait_for_node.wait_for(condition)

    async def admit(self) -> None:
        """Assign nodes to all Pods and run them."""
        for number, pod in enumerate([*self.kinds["pods"].values()]):
            pod["spec"].pop("schedulingGates", None)
            pod["spec"]["nodeName"] = f"node{number}"
            state: dict[str, Any] = {"name": "replica", "state": {"running": {}}}
            pod["status"] = {"phase": "Running", "containerStatuses": [state]}
            await self.put("MODIFIED", "pods", pod)

    async def _changes(self, kind: str) -> AsyncIterator[bytes]:
        for number in range(1 << 30):
            async with self.wait_for_node:
                await self.wait_for_node.wait_for(
                    lambda number=number: len(self._events.get(kind, [])) > number
                )
            yield self._events[kind][number]


def acquire(here: KubernetesCluster, index: int, avoid: tuple[str, ...] = ()) -> Task[Allocation]:
    """Request one of the two Pods of an attempt."""
    return asyncio.create_task(here.acquire(ALLOCATIONS[index], [NEEDS[index]], avoid=avoid))


async def delays(here: KubernetesCluster, *names: AllocationName) -> Delay:
    """Wait until the delays of all these allocations are known, and return the last one's."""
    async for report in here.watch():
        if report.delays.keys() >= {*names}:
            return report.delays[names[-1]]
    raise AssertionError("the cluster was closed")


@pytest.fixture(autouse=True)
def short_quota_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_QUOTA_KEEP_SECONDS", 0.01)


async def test_attempt_becomes_a_single_kueue_workload_and_shows_the_wait_reason_of_kueue(
    start: Start,
) -> None:
    api = Api()
    here = await start(api, **QUEUE)
    acquisitions = [acquire(here, index, avoid=("bad",)) for index in range(2)]
    await api.until(lambda: len(api.kinds["pods"]) == 2)
    for pod in api.kinds["pods"].values():
        own = pod["metadata"]
        assert own["labels"]["kueue.x-k8s.io/queue-name"] == "users"
        assert own["labels"]["kueue.x-k8s.io/pod-group-name"] == GROUP
        assert own["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert own["annotations"]["kueue.x-k8s.io/role-hash"] == "workerpool0"
        [terms] = pod["spec"]["affinity"]["nodeAffinity"].values()
        [field] = terms["nodeSelectorTerms"][0]["matchFields"]
        assert field == {"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}
    condition = ("False", "Pending", "couldn't assign flavors: insufficient unused quota for cpu")
    await api.put("ADDED", "workloads", workload("theirs"))
    await api.put("ADDED", "workloads", workload(GROUP, 1, QuotaReserved=condition))
    delay = await delays(here, *ALLOCATIONS)
    assert delay.message == (f"Kueue has not admitted the job to queue users yet: {condition[2]} (Pending)")
    assert (delay.word, delay.position) == ("Pending", 2)
    await api.admit()
    granted = await asyncio.gather(*acquisitions)
    assert sorted(allocation.nodes for allocation in granted) == [("node0",), ("node1",)]
    # Kueue keeps quota for replacements of ended Pods. The workload is deleted with the last Pod.
    await here.release(ALLOCATIONS[0])
    assert GROUP not in api.deleted
    await here.release(ALLOCATIONS[1])
    await api.until(lambda: GROUP in api.deleted)
    await here.close()
    assert api.deleted == ["job-0-1-0", "job-1-1-1", GROUP]


async def test_pending_pod_is_reused_after_a_service_restart(start: Start) -> None:
    api = Api()
    here = await start(api, **QUEUE)
    acquiring = acquire(here, 0)
    await api.until(lambda: bool(api.kinds["pods"]))
    here.detach()
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    await here.close()
    assert not api.deleted
    here = await start(api, **QUEUE)
    acquiring = acquire(here, 0)
    await api.admit()
    assert (await acquiring).nodes == ("node0",)
    assert len(api.kinds["pods"]) == 1


async def test_pod_without_kueue_admission_is_rejected(start: Start) -> None:
    api = Api(manages=False)
    here = await start(api, **QUEUE)
    acquiring = acquire(here, 0)
    await api.until(lambda: bool(api.kinds["pods"]))
    await api.admit()
    with pytest.raises(ClusterRefused, match="Pod default/job-0-1-0 started without Kueue's admission"):
        await acquiring
    await here.close()
    assert "job-0-1-0" in api.deleted


async def test_cluster_without_kueue_is_rejected_if_the_settings_name_a_queue(start: Start) -> None:
    with pytest.raises(ClusterRefused, match="install it, or set queue"):
        await start(Api(has_kueue=False), **QUEUE)


async def test_moved_replica_gets_a_new_pod_only_after_its_old_pod_has_ended(start: Start) -> None:
    """In a group of two, Kueue would end the newest of three Pods."""
    api = Api()
    moved = AllocationName("abc", JobUid(7), 1, 2)
    here = await start(api, **QUEUE)
    acquisitions = [acquire(here, index) for index in range(2)]
    await api.until(lambda: len(api.kinds["pods"]) == 2)
    await api.admit()
    await asyncio.gather(*acquisitions)
    following = asyncio.create_task(here.acquire(moved, NEEDS[1:], avoid=()))
    delay = await delays(here, moved)
    assert "until Kubernetes has seen it end on node node" in delay.message
    assert len(api.kinds["pods"]) == 2
    over = api.kinds["pods"]["job-1-1-1"]
    orphaned = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    over["status"] = {"phase": "Failed", "conditions": [orphaned]}
    await api.put("MODIFIED", "pods", over)
    await api.until(lambda: "job-1-1-2" in api.kinds["pods"])
    follower = api.kinds["pods"]["job-1-1-2"]["metadata"]
    assert follower["labels"]["kueue.x-k8s.io/pod-group-name"] == GROUP
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def delay_of(own: dict[str, Any], *others: dict[str, Any]) -> Delay | None:
    return kueue.delay(parse_workload(own), [parse_workload(workload) for workload in (own, *others)])


NO_QUOTA = ("False", "Pending", "no quota")


async def test_queue_position_of_a_workload_depends_on_its_priority_and_age() -> None:
    own = workload("own", 5, QuotaReserved=NO_QUOTA)
    before = workload("older", 4)
    urgent = workload("urgent", 9)
    urgent["spec"]["priority"] = 10
    elsewhere = workload("elsewhere", 1)
    elsewhere["spec"]["queueName"] = "others"
    gone = (
        workload("admitted", 1, QuotaReserved=("True", "QuotaReserved", "")),
        workload("finished", 1, Finished=("True", "Succeeded", "")),
        workload("younger", 6),
        elsewhere,
    )
    delay = delay_of(own, before, urgent, *gone)
    assert delay is not None and delay.position == 3


async def test_wait_reason_contains_the_message_of_kueue() -> None:
    assert delay_of(workload("new")) is None, "Kueue has not examined it"
    yes = "True", "", ""
    assert delay_of(workload("admitted", QuotaReserved=yes, Admitted=yes)) is None
    nowhere = ("False", "Inadmissible", "LocalQueue users doesn't exist")
    delay = delay_of(workload("own", QuotaReserved=nowhere))
    assert delay is not None and delay.word == "Inadmissible"
    assert "LocalQueue users doesn't exist (Inadmissible)" in delay.message
    checked = workload("own", QuotaReserved=yes)
    checked["status"]["admissionChecks"] = [
        {"name": "nodes", "state": "Pending", "message": "3 nodes are being made."},
        {"name": "other", "state": "Ready", "message": ""},
    ]
    delay = delay_of(checked)
    assert delay is not None and "(nodes: 3 nodes are being made)" in delay.message


async def test_pod_ended_by_kueue_counts_as_preempted() -> None:
    text = "Preempted to accommodate a workload"
    why = {"reason": "WorkloadEvictedDueToPreempted", "message": text}
    condition = {"type": "TerminationTarget", "status": "True", **why}
    metadata = {"name": "one", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Failed", "conditions": [condition]}
    pod = msgspec.convert({"metadata": metadata, "status": status}, Pod, strict=False)
    end = states.end(pod, deleted=True)
    assert end.loss is Cause.CLUSTER_PREEMPTED
    assert text in end.why


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"queue": "kueue"}, "local_queue: it is missing"),
        ({"local_queue": "users"}, "local_queue: it is Kueue's"),
        ({"queue": "volcano"}, "queue"),
    ],
)
async def test_invalid_combinations_of_queue_settings_are_rejected(table: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse({"image": "i:1", **table})
