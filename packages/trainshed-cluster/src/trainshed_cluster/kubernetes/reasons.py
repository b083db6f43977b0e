"""Says in plain words why a Pod does not run yet and how one ended, with Kubernetes' own word beside them.
Pure."""

from typing import Final

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.lifecycle.replica_events import Loss
from trainshed_cluster.kubernetes import kueue
from trainshed_cluster.kubernetes.objects import Pod, Terminated
from trainshed_cluster.remote.cluster import HoldEnd

_PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Words of an image that does not come; it may yet."""
TRIED_AGAIN: Final = _PULLS | {"CreateContainerError", "RunContainerError"}
"""Words of what a kubelet tries again for good."""
_HOPELESS = {
    "InvalidImageName": "its name is no image's",
    "ErrImageNeverPull": "its node has it not, and the Pod may not pull it",
    "ImageInspectError": "it cannot be read there",
}
"""Words of an image that will never come, and what they mean."""
_UNFIT = {
    "CreateContainerConfigError": "its container cannot be made as the settings say",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be run",
    "StartError": "its command cannot be run",
    "ContainerCannotRun": "its command cannot be run",
}
_ENDS: Final = {
    "Preempting": (
        Loss.CLUSTER_PREEMPTED,
        "the cluster gave its place to a Pod that goes before it",
    ),
    "NodeLost": (Loss.NODE_FAILED, "its node is lost, as Kubernetes says"),
    "NodeShutdown": (Loss.NODE_FAILED, "its node shut down"),
    "Shutdown": (Loss.NODE_FAILED, "its node shut down"),
    "Terminated": (Loss.NODE_FAILED, "its node shut down"),
    "NodeAffinity": (Loss.POD_EVICTED, "its node does not take it any more"),
    "DeadlineExceeded": (Loss.ALLOCATION_EXPIRED, "its time limit in the cluster is over"),
}
"""By the reason of a Pod that failed: what ended it, and in what words."""
_OWN_LIMITS: Final = {
    'EmptyDir volume "shm" exceeds': Loss.OUT_OF_MEMORY,
    "EmptyDir volume": Loss.OUT_OF_DISK,
    "ephemeral local storage usage exceeds": Loss.OUT_OF_DISK,
    "exceeded its local ephemeral storage limit": Loss.OUT_OF_DISK,
}
"""Of the message of an eviction: the Pod's own limits, not those of the node. The first that is found
counts."""
_LONGEST = 300


def delay(pod: Pod) -> Delay | None:
    """Return the delay to report of a Pod that does not run yet; None = nothing keeps it for long."""
    if unscheduled := pod.unscheduled:
        word = unscheduled.reason or "Unschedulable"
        if word == "SchedulingGated":
            return None  # The controller that put the gates there says why.
        message = _shortened(unscheduled.message) or "the scheduler has not said why"
        return Delay(
            WaitReason.CLUSTER,
            f"Kubernetes has not placed Pod {pod.metadata.name}: {message} ({word})",
            word=word,
        )
    waiting = pod.waiting
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return None
    image = pod.waiting_image
    pulling = f"its image {image} does not come" if image else "its image does not come"
    words = pulling if waiting.reason in _PULLS else _why(waiting.reason)
    message = f": {_shortened(waiting.message)}" if waiting.message else ""
    return Delay(
        WaitReason.CLUSTER,
        f"Pod {pod.metadata.name} does not start on node {pod.spec.node_name}: {words}{message} "
        f"({waiting.reason})",
        word=waiting.reason,
    )


def refusal(pod: Pod) -> str:
    """Return why a Pod will never run, however long it waits; "" = it may."""
    if (waiting := pod.waiting) and waiting.reason in (*_HOPELESS, "CreateContainerConfigError"):
        image = pod.waiting_image or ", ".join(
            container.image for container in pod.spec.containers or ()
        )
        message = f" ({_shortened(waiting.message)})" if waiting.message else ""
        what = f"image {image}" if waiting.reason in _HOPELESS else "the Pod"
        return (
            f"{what} cannot be used on this cluster: {_why(waiting.reason)}{message} [{waiting.reason}]; "
            "mend [engines.kubernetes], or what it names in the cluster"
        )
    return ""


def end(pod: Pod, *, deleted: bool) -> HoldEnd:
    """Return how a Pod ended of which nothing runs any more. `deleted`: its deletion was requested before."""
    name, status, over = pod.metadata.name, pod.status, pod.terminated
    if status.reason == "Evicted":
        own = (loss for words, loss in _OWN_LIMITS.items() if words in status.message)
        loss = next(own, Loss.POD_EVICTED)
        return HoldEnd(loss, f"Pod {name} was evicted: {_shortened(status.message)} (Evicted)")
    if over is not None and over.reason == "OOMKilled":
        return HoldEnd(
            Loss.OUT_OF_MEMORY,
            f"Pod {name} took more memory than its limit, and was killed for it with all that ran in it "
            "(OOMKilled)",
        )
    if status.reason in _ENDS:
        loss, words = _ENDS[status.reason]
        message = f": {_shortened(status.message)}" if status.message else ""
        return HoldEnd(loss, f"{words}{message} (Pod {name}: {status.reason})")
    if disrupted := _disruption(pod):
        return disrupted
    if evicted := kueue.eviction(pod):
        message = _shortened(evicted.message) or evicted.reason
        return HoldEnd(
            Loss.CLUSTER_PREEMPTED, f"Kueue ended Pod {name}: {message} ({evicted.reason})"
        )
    if deleted:
        return HoldEnd(
            Loss.POD_EVICTED,
            f"Pod {name} was deleted, or evicted from its node, and not by this service",
        )
    return HoldEnd(Loss.AGENT_LOST, f"Pod {name} has ended{_exit(over)}")


def _disruption(pod: Pod) -> HoldEnd | None:
    """Return the end that the condition DisruptionTarget tells, which names who ended a Pod; Kubernetes has
    it since 1.26."""
    condition = next(
        (
            candidate
            for candidate in pod.status.conditions or ()
            if candidate.type == "DisruptionTarget"
        ),
        None,
    )
    if condition is None or condition.status != "True":
        return None
    losses = {
        "PreemptionByScheduler": Loss.CLUSTER_PREEMPTED,
        "DeletionByTaintManager": Loss.NODE_FAILED,
        "DeletionByPodGC": Loss.NODE_FAILED,
    }
    message = _shortened(condition.message) or condition.reason
    return HoldEnd(
        losses.get(condition.reason, Loss.POD_EVICTED), f"{message} ({condition.reason})"
    )


def _exit(over: Terminated | None) -> str:
    if over is None:
        return ""
    lines = over.message.strip().splitlines()
    return f" with exit code {over.exit_code}" + (f": {_shortened(lines[-1])}" if lines else "")


def _why(word: str) -> str:
    return _HOPELESS.get(word) or _UNFIT.get(word) or "for a reason of the cluster's own"


def _shortened(text: str) -> str:
    """Return a text as one line, not too long, without its full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
