"""Reports of a cluster's nodes and Pods: capacity, node states, reasons why Pods wait, and causes of their
ends."""

from typing import Any

import msgspec
import pytest

from trainshed.core.capacity import MachineWanted
from trainshed.core.failure.evidence import Cause
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState
from trainshed_cluster.kubernetes import manifests, states
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod
from trainshed_cluster.kubernetes.routes import OUT_OF_SERVICE, Routes
from trainshed_cluster.kubernetes.settings import parse
from trainshed_cluster.kubernetes.states import compile_report, node_state
from trainshed_cluster.remote.cluster import AllocationName, ClusterReport

ALLOCATION = AllocationName("abc", JobUid(7), 1, 0)
READY = [{"type": "Ready", "status": "True"}]
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
PREEMPTED = {"reason": "PreemptionByScheduler", "message": "default-scheduler: preempting"}
T4 = {"NVIDIA_TESLA_T4": {"node_selector": {"gpu": "t4"}}}


def node(name: str = "node-a", **fields: Any) -> ClusterNode:
    status = {
        "allocatable": {"cpu": "7910m", "memory": "30Gi", "nvidia.com/gpu": "4"},
        "conditions": fields.pop("conditions", READY),
    }
    metadata = {"name": name, "labels": fields.pop("labels", {})}
    return msgspec.convert({"metadata": metadata, "spec": fields, "status": status}, ClusterNode)


def pod(*, mine: bool = True, at: str = "node-a", deleted: bool = False, **status: Any) -> Pod:
    metadata: dict[str, Any] = {"name": "p-1", "namespace": "default", "uid": "u1"}
    if mine:
        metadata["labels"] = {manifests.SERVICE: "abc"}
        metadata["annotations"] = {manifests.ALLOCATION: str(ALLOCATION)}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    wanted = {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "1"}
    spec = {
        "nodeName": at,
        "containers": [{"name": "replica", "image": "i:1", "resources": {"requests": wanted}}],
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "replica", "state": state}]}


def eviction(message: str) -> dict[str, str]:
    return {"reason": "Evicted", "message": message}


RUNNING: dict[str, Any] = {"phase": "Running", **container(running={})}


def report(
    nodes: list[ClusterNode], pods: list[Pod], table: dict[str, Any] | None = None, **more: Any
) -> ClusterReport:
    settings = parse({"image": "i:1", **(table or {})})
    return compile_report(
        1.0,
        nodes,
        pods,
        service="abc",
        routes=Routes(settings),
        overcommit=settings.overcommit,
        ghosts=more.get("ghosts", {}),
        wanted=more.get("wanted", ()),
    )


def test_resources_of_other_pods_are_subtracted_from_a_node() -> None:
    theirs, over = pod(mine=False, **RUNNING), pod(mine=False, phase="Succeeded")
    [node_report] = report(
        [node(labels={"gpu": "t4"})], [theirs, over, pod(**RUNNING)], {"accelerators": T4}
    ).nodes
    assert node_report.node.vcpus == pytest.approx(7.91)
    assert node_report.node.memory_bytes == 30 << 30
    assert node_report.node.accelerators == (("NVIDIA_TESLA_T4", 4),)
    assert node_report.node.others.vcpus == 1.5
    assert node_report.node.others.memory_bytes == 2 << 30
    assert node_report.node.others.accelerators == (("NVIDIA_TESLA_T4", 1),)


def test_node_without_the_configured_label_has_no_accelerators() -> None:
    [node_report] = report([node(labels={"gpu": "other"})], [], {"accelerators": T4}).nodes
    assert node_report.node.accelerators == ()


def test_overcommit_setting_multiplies_the_processors_of_a_node() -> None:
    [node_report] = report([node()], [pod(mine=False, **RUNNING)], {"overcommit": 2.0}).nodes
    assert (node_report.node.vcpus, node_report.node.others.vcpus) == (pytest.approx(15.82), 3.0)


def test_pod_requests_include_init_containers_and_sidecars() -> None:
    some = {"resources": {"requests": {"cpu": "1"}}}
    large = {"resources": {"requests": {"cpu": "3"}}}
    spec = {"containers": [some, some], "initContainers": [large], "overhead": {"cpu": "250m"}}
    parsed = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    assert parsed.requests == {"cpu": 3.25}
    spec |= {"initContainers": [large | {"restartPolicy": "Always"}]}
    beside = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    assert beside.requests == {"cpu": 5.25}


def test_node_report_contains_only_usable_nodes_and_nodes_with_jobs() -> None:
    selector = {"node_selector": {"pool": "training"}}
    inside, outside = node("node-b", labels={"pool": "training"}), node("node-a")
    assert [known.node.name for known in report([inside, outside], [], selector).nodes] == ["node-b"]
    assert len(report([inside, outside], [pod(**RUNNING)], selector).nodes) == 2


def test_tainted_node_accepts_only_machines_with_a_toleration() -> None:
    tainted = node(taints=[{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}])
    table = {
        "machines": [
            {"types": ["a2-*"], "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "gpu"}]}
        ]
    }
    [node_report] = report([tainted], [], table).nodes
    accepts = node_report.node.accepts
    assert accepts.allows(MachineWanted("a2-highgpu-1g"))
    assert not accepts.allows(MachineWanted("n1-standard-4"))
    assert report([tainted], []).nodes == ()


@pytest.mark.parametrize(
    ("fields", "state", "is_awaited"),
    [
        ({}, NodeState.UP, False),
        ({"unschedulable": True}, NodeState.DRAINING, False),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, NodeState.DRAINING, False),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, NodeState.GONE, True),
        ({"conditions": []}, NodeState.GONE, True),
        (
            {
                "conditions": [{"type": "Ready", "status": "Unknown"}],
                "taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}],
            },
            NodeState.GONE,
            False,
        ),
    ],
)  # fmt: skip
def test_node_state_follows_conditions_and_taints(
    fields: dict[str, Any], state: NodeState, is_awaited: bool
) -> None:
    """Programs on an unreachable node may live until their agents have been silent for a whole lease, unless
    an operator has marked the node as off."""
    seen = node_state(node(**fields))
    assert (seen[0], seen[2]) == (state, is_awaited)
    assert bool(seen[1]) is (state is not NodeState.UP)


def test_missing_node_stays_in_the_report_while_its_programs_may_be_alive() -> None:
    [node_report] = report([], [], ghosts={ALLOCATION: "node-a"}).nodes
    assert (node_report.node.name, node_report.state, node_report.is_awaited) == (
        "node-a",
        NodeState.GONE,
        True,
    )
    assert report([], []).nodes == ()


def test_running_pods_and_vanished_pods_count_as_running_agents() -> None:
    assert report([node()], [pod(**RUNNING)]).agents == {ALLOCATION: {"node-a"}}
    assert report([node()], [pod(phase="Pending")]).agents == {}
    assert report([node()], [pod(phase="Failed")]).agents == {}
    assert report([node()], [], ghosts={ALLOCATION: "node-a"}).agents == {ALLOCATION: {"node-a"}}


def test_scheduling_delay_is_reported_only_for_allocations_that_a_job_waits_for() -> None:
    why = {"reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}
    condition = {"type": "PodScheduled", "status": "False", **why}
    pending = pod(at="", phase="Pending", conditions=[condition])
    delay = report([node()], [pending], wanted={ALLOCATION}).delays[ALLOCATION]
    assert delay.word == "Unschedulable" and "2 Insufficient cpu (Unschedulable)" in delay.message
    assert not report([node()], [pending]).delays


def test_image_pull_failure_is_reported_with_its_reason() -> None:
    waiting = container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling i:1"})
    delay = states.delay(pod(phase="Pending", **waiting))
    assert delay is not None and delay.word == "ImagePullBackOff" and "node-a" in delay.message
    assert not states.refusal(pod(phase="Pending", **waiting))
    usual = container(waiting={"reason": "ContainerCreating"})
    assert states.delay(pod(phase="Pending", **usual)) is None


@pytest.mark.parametrize("word", ["InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"])
def test_pod_with_a_permanent_waiting_reason_is_rejected(word: str) -> None:
    why = states.refusal(pod(phase="Pending", **container(waiting={"reason": word})))
    assert why and word in why and "engines.kubernetes" in why


@pytest.mark.parametrize(
    ("status", "deleted", "loss"),
    [
        (container(terminated={"exitCode": 137, "reason": "OOMKilled"}), False, Cause.OUT_OF_MEMORY),
        (eviction("The node was low on resource: ephemeral-storage."), False, Cause.POD_EVICTED),
        (
            eviction("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."),
            False,
            Cause.OUT_OF_DISK,
        ),
        # Messages in the form that kubelets report.
        (
            eviction('Container replica exceeded its local ephemeral storage limit "1Gi". '),
            False,
            Cause.OUT_OF_DISK,
        ),
        (eviction('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". '), False, Cause.OUT_OF_DISK),
        (eviction('Usage of EmptyDir volume "shm" exceeds the limit "1Gi". '), False, Cause.OUT_OF_MEMORY),
        ({"reason": "Preempting", "message": "Preempted"}, False, Cause.CLUSTER_PREEMPTED),
        ({"reason": "NodeShutdown"}, False, Cause.NODE_FAILED),
        ({"reason": "DeadlineExceeded"}, False, Cause.ALLOCATION_EXPIRED),
        (container(terminated={"exitCode": 143}), True, Cause.POD_EVICTED),
        (container(terminated={"exitCode": 78, "message": "x\nno code"}), False, Cause.AGENT_LOST),
        ({"conditions": [DISRUPTED | PREEMPTED]}, True, Cause.CLUSTER_PREEMPTED),
    ],
)
def test_pod_end_is_reported_with_its_cause(status: dict[str, Any], deleted: bool, loss: Cause) -> None:
    ended = states.end(pod(deleted=deleted, phase="Failed", **status), deleted=deleted)
    assert ended.loss is loss and not ended.why.endswith(".")
    if loss is Cause.AGENT_LOST:
        assert ended.why.endswith("with exit code 78: no code")


def test_wait_reason_and_error_name_the_image_that_cannot_be_pulled() -> None:
    def waits(reason: str, image: str) -> dict[str, Any]:
        return {"name": "c", "image": image, "state": {"waiting": {"reason": reason}}}

    own = [waits("PodInitializing", "job:1")]
    base: dict[str, Any] = {
        "initContainerStatuses": [waits("ImagePullBackOff", "base:1")],
        "containerStatuses": own,
    }
    delay = states.delay(pod(phase="Pending", **base))
    assert delay is not None and "its image base:1 cannot be pulled" in delay.message
    done = {"name": "c", "image": "base:1", "state": {"terminated": {"exitCode": 0}}}
    later = [waits("ErrImageNeverPull", "job:1")]
    waiting_pod = pod(phase="Pending", initContainerStatuses=[done], containerStatuses=later)
    why = states.refusal(waiting_pod)
    assert not waiting_pod.is_over and why and "image job:1 cannot be used" in why


def test_pod_marked_as_failed_after_a_node_loss_does_not_count_as_ended() -> None:
    """The control plane marks it as failed without contacting the node. The service must first wait until the
    agent there has been silent for a whole lease."""
    lost = DISRUPTED | {"reason": "DeletionByPodGC"}
    assert not pod(phase="Failed", conditions=[lost]).is_over
    ended = {"name": "c", "state": {"terminated": {"exitCode": 1}}}
    assert pod(phase="Failed", conditions=[lost], containerStatuses=[ended]).is_over


def test_failed_copy_of_python_ends_the_pod_and_reports_the_error_message() -> None:
    failed = {
        "exitCode": 1,
        "message": "python3 cannot be copied, because it does not use the loader of glibc",
    }
    statuses = [{"name": "carry-python", "image": "base:1", "state": {"terminated": failed}}]
    ended = pod(phase="Failed", initContainerStatuses=statuses)
    assert ended.is_over and "cannot be copied" in states.end(ended, deleted=False).why
