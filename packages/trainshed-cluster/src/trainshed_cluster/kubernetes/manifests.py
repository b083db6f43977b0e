"""Makes the manifest of a hold's Pod. Pure.

Nothing that a user wrote gets into a command: a Pod's command is the agent's, which reads what to run from
its standard input.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import carried_python, kueue
from trainshed_cluster.kubernetes.objects import Pod, cpu_quantity
from trainshed_cluster.kubernetes.routes import NODES_OWN, KubernetesRoute
from trainshed_cluster.kubernetes.settings import Accelerator, KubernetesSettings
from trainshed_cluster.remote.cluster import HoldName, NodeNeed

HOLD: Final = "trainshed/hold"
"""Annotation: the whole name of the hold that the Pod is."""
AGAIN: Final = "trainshed/again"
"""Annotation: how many Pods of that hold there were before it; none = it is the first."""
SERVICE: Final = "trainshed/service"
"""Label: tells this service's Pods from those of others."""
JOB, ATTEMPT, REPLICA = "trainshed/job", "trainshed/attempt", "trainshed/replica"
CONTAINER: Final = "replica"
"""The one container of a Pod."""
DIRECTORY: Final = "/var/lib/trainshed"
"""Where an agent and its programs write."""
CARRIED: Final = "/opt/trainshed"
"""Where the agent's own Python is in Pods whose image is a job's."""
HOSTS_FILE: Final = "/etc/hosts"
"""Where programs find each other by name: the agent keeps it up to date."""
_PREPARES: Final = "write-hosts"
"""The init container that makes one which the agent may write, if that is not root."""
PYTHON: Final = "python3"
"""The command of Pods' images that is a Python of the service's version."""
CARRIES: Final = "carry-python"
"""The init container that brings it there."""
_SCRATCH, _SHM, _CACHE, _CARRIED, _HOSTS = "scratch", "shm", "cache", "python", "hosts"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def pod_name(need: NodeNeed, hold: HoldName, again: int = 0) -> str:
    """Return the name of a replica's Pod: hostname, attempt, number of the hold in the attempt, and `again`
    unless it is 0, because a Pod that has ended may keep its name for a minute."""
    base = _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-") or f"trainshed-{hold.job_uid}"
    # The API allows 253 characters, some of which the suffix needs.
    return f"{base[:230]}-{hold.attempt}-{hold.part}" + (f"-{again}" if again else "")


def again_of(pod: Pod) -> int:
    """Return how many Pods its hold had before this one."""
    written = (pod.metadata.annotations or {}).get(AGAIN, "")
    return int(written) if written.isdecimal() and len(written) < 9 else 0


def hold_of(pod: Pod, service: str) -> HoldName | None:
    """Return the hold of a Pod; None = the Pod is not this service's."""
    if (pod.metadata.labels or {}).get(SERVICE) != service:
        return None
    try:
        name = HoldName.parse((pod.metadata.annotations or {}).get(HOLD, ""))
    except ValueError:
        return None
    return name if name.service == service else None


def pod(
    settings: KubernetesSettings,
    route: KubernetesRoute,
    accelerator: Accelerator | None,
    hold: HoldName,
    need: NodeNeed,
    *,
    command: Sequence[str],
    cache: str,
    beside: Sequence[str] = (),
    again: int = 0,
    avoid: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the manifest of the Pod that holds what one replica needs, on the named node or with `avoid` on
    any but those. `accelerator`: the cluster's name of its devices. `command`: starts the agent. `cache`: the
    service's cache directory, which Pods have at the same path. `beside`: other directories from which they
    are sent content, likewise. `again`: how many Pods the hold had before."""
    own_selector = dict(route.node_selector) | dict(
        accelerator.node_selector if accelerator else {}
    )
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as:
        own = settings.run_as
        context |= {"runAsNonRoot": True, "runAsUser": own, "runAsGroup": own, "fsGroup": own}
    else:
        context |= {"runAsUser": 0}
    spec: dict[str, Any] = {
        # Only the service restarts a replica, because only it knows whether that is allowed.
        "restartPolicy": "Never",
        # Longer than the programs', so that the agent can report their ends.
        "terminationGracePeriodSeconds": math.ceil(settings.grace) + 10,
        "hostname": _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-")[:63].rstrip("-"),
        "enableServiceLinks": False,
        # Programs are not trusted: they get no credentials of the cluster.
        "automountServiceAccountToken": False,
        "securityContext": context,
        "tolerations": _tolerations(route),
        "containers": [_container(settings, accelerator, need, command, (cache, *beside))],
        "volumes": _volumes(settings, need, beside),
    }
    affinity = _affinity("In", [need.node]) if avoid is None else _affinity("NotIn", avoid)
    optional: dict[str, Any] = {
        "affinity": {"nodeAffinity": affinity} if affinity else {},
        "initContainers": [
            *([_carrying(settings)] if need.image else []),
            *([_making_hosts(settings)] if _has_own_hosts(settings, need) else []),
        ],
        "nodeSelector": own_selector,
        "runtimeClassName": route.runtime_class,
        "priorityClassName": route.priority_class,
        "schedulerName": settings.scheduler,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
    }
    spec |= {key: value for key, value in optional.items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(need, hold, again),
            "namespace": namespace(need),
            "labels": _labels(settings, hold, need),
            "annotations": {
                HOLD: str(hold),
                **({AGAIN: str(again)} if again else {}),
                **(kueue.annotations(need) if settings.queue == "kueue" else {}),
                # Autoscalers must not evict a Pod, because a replica cannot be moved.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": spec,
    }


def namespace(need: NodeNeed) -> str:
    return need.owner.account or "default"


def escaped(argument: str) -> str:
    """Escape an argument of a container: Kubernetes replaces $(NAME) by a variable, and $$ by $."""
    return argument.replace("$", "$$")


def _labels(settings: KubernetesSettings, hold: HoldName, need: NodeNeed) -> dict[str, str]:
    pool, _, _ = need.replica.partition("-")
    labels = {
        "app.kubernetes.io/name": "training-job",
        "app.kubernetes.io/instance": f"job-{hold.job_uid}",
        "app.kubernetes.io/component": pool,
        "app.kubernetes.io/managed-by": "trainshed",
        SERVICE: hold.service,
        JOB: str(JobUid(hold.job_uid)),
        ATTEMPT: str(hold.attempt),
        REPLICA: need.replica,
        **(kueue.labels(hold, settings.local_queue) if settings.queue == "kueue" else {}),
    }
    return {key: value for key, value in labels.items() if value}


def _affinity(operator: Literal["In", "NotIn"], nodes: Collection[str]) -> dict[str, Any]:
    """Return a node affinity as a DaemonSet's Pods have it: the scheduler still checks resources and taints,
    which it would not if the Pod set `nodeName`."""
    fields = [
        {"key": "metadata.name", "operator": operator, "values": [node]} for node in sorted(nodes)
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms} if fields else {}


def _tolerations(route: KubernetesRoute) -> list[dict[str, Any]]:
    """Return the operator's tolerations, and unlimited ones for nodes that are not ready or unreachable:
    programs there may be well, and are only lost when their agent's lease ends, while Kubernetes would end
    them by the clock."""
    own = [
        {
            key: value
            for key, value in (("key", toleration.key), ("operator", toleration.operator))
            if value
        }
        | ({"value": toleration.value} if toleration.operator == "Equal" else {})
        | ({"effect": toleration.effect} if toleration.effect else {})
        for toleration in route.tolerations
    ]
    return own + [
        {"key": f"{NODES_OWN}{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]


def _container(
    settings: KubernetesSettings,
    accelerator: Accelerator | None,
    need: NodeNeed,
    command: Sequence[str],
    sent: Sequence[str],
) -> dict[str, Any]:
    requests: dict[str, Any] = {
        "cpu": cpu_quantity(need.vcpus / settings.overcommit),
        "memory": str(need.memory_bytes),
    }
    limits = {"memory": requests["memory"]}
    if settings.overcommit == 1:
        limits["cpu"] = requests["cpu"]
    if accelerator is not None:
        limits[accelerator.resource] = requests[accelerator.resource] = str(need.accelerators)
    if need.image:
        command = (*_CARRIED_COMMAND, *command[1:])
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": need.image or settings.image,
        "command": [escaped(argument) for argument in command],
        # The agent's document is written there, once.
        "stdin": True,
        "stdinOnce": True,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # So the termination message says why an agent could not begin.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _SCRATCH, "mountPath": DIRECTORY},
            {"name": _SHM, "mountPath": "/dev/shm"},
            *([{"name": _CARRIED, "mountPath": CARRIED, "readOnly": True}] if need.image else []),
            *(
                [{"name": _HOSTS, "mountPath": HOSTS_FILE, "subPath": _HOSTS}]
                if _has_own_hosts(settings, need)
                else []
            ),
            *(_sent_mount(settings, number, path) for number, path in enumerate(sent)),
        ],
    }
    if not need.image:
        # Programs of a job's own image begin in the image's working directory.
        container["workingDir"] = DIRECTORY
    return container


_CARRIER: Final = Path(carried_python.__file__).read_text("utf-8")
_CARRIED_COMMAND: Final = (
    f"{CARRIED}/lib/{carried_python.LOADER}",
    "--library-path",
    f"{CARRIED}/lib",
    f"{CARRIED}/bin/python3",
)


def _carrying(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the init container that copies the operator's Python to where the job's image can run it."""
    return _preparing(settings, CARRIES, _CARRIER, _CARRIED, f"/{_CARRIED}")


def _making_hosts(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the init container that copies the hosts file that Kubernetes made, for the agent to extend."""
    script = f"import shutil,sys;shutil.copyfile('{HOSTS_FILE}',sys.argv[1]+'/{_HOSTS}')"
    return _preparing(settings, _PREPARES, script, _HOSTS, f"/{_HOSTS}")


def _has_own_hosts(settings: KubernetesSettings, need: NodeNeed) -> bool:
    """Whether the Pod needs a hosts file of its own: peers are found by name, and Kubernetes' file belongs to
    root."""
    return need.gang_size > 1 and settings.run_as != 0


def _preparing(
    settings: KubernetesSettings, name: str, script: str, volume: str, path: str
) -> dict[str, Any]:
    """Return an init container of the operator's image that runs a Python script with a volume's directory as
    argument."""
    amounts = {"cpu": "100m", "memory": "128Mi"}
    return {
        "name": name,
        "image": settings.image,
        "command": [PYTHON, "-I", "-S", "-c", escaped(script), path],
        # Far less than the main container's, since the larger of the two counts.
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": volume, "mountPath": path}],
    }


def _sent_mount(settings: KubernetesSettings, number: int, path: str) -> dict[str, Any]:
    """Return the mount of a directory from which Pods are sent content; number 0 is the cache's."""
    if number and settings.cache_claim:
        return {"name": _CACHE, "mountPath": path, "subPath": _beside(path)}
    return {"name": _sent(number), "mountPath": path}


def _sent(number: int) -> str:
    return f"sent-{number}" if number else _CACHE


def _beside(path: str) -> str:
    """Return where in a kept cache the files of another directory are."""
    return f"beside-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _volumes(
    settings: KubernetesSettings, need: NodeNeed, beside: Sequence[str]
) -> list[Mapping[str, Any]]:
    where: dict[str, Any] = {"name": _CACHE}
    if settings.cache_claim:
        where["persistentVolumeClaim"] = {"claimName": settings.cache_claim}
    elif settings.cache:
        where["hostPath"] = {"path": settings.cache, "type": "DirectoryOrCreate"}
    else:
        where["emptyDir"] = {}
    return [
        {"name": _SCRATCH, "emptyDir": {}},
        # The default of 64 MiB is too small for data-loading workers.
        {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(need.memory_bytes)}},
        where,
        *([{"name": _CARRIED, "emptyDir": {}}] if need.image else []),
        *([{"name": _HOSTS, "emptyDir": {}}] if _has_own_hosts(settings, need) else []),
        *_volumes_beside(settings, beside),
    ]


def _volumes_beside(
    settings: KubernetesSettings, beside: Sequence[str]
) -> Iterable[Mapping[str, Any]]:
    """Return the volumes of the other directories, kept with the cache if possible: a kubelet creates
    hostPath directories for root alone."""
    if settings.cache_claim:
        return
    kept = settings.cache and settings.run_as == 0
    for number, path in enumerate(beside, 1):
        place = {"path": f"{settings.cache}/{_beside(path)}", "type": "DirectoryOrCreate"}
        yield {"name": _sent(number), **({"hostPath": place} if kept else {"emptyDir": {}})}
