"""Creates the manifest of an allocation's Pod. Pure.

A Pod's command starts the agent. The service then sends the agent's startup data (its document) to the Pod's
standard input. The command contains no text from a user, so that command injection is impossible.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import kueue, python_copy
from trainshed_cluster.kubernetes.objects import Pod, cpu_quantity
from trainshed_cluster.kubernetes.routes import CONDITION_PREFIX, KubernetesRoute
from trainshed_cluster.kubernetes.settings import Accelerator, KubernetesSettings
from trainshed_cluster.remote.cluster import AllocationName, NodeNeed

ALLOCATION: Final = "trainshed/hold"
"""Annotation: the name of the Pod's allocation."""
PREDECESSORS: Final = "trainshed/again"
"""Annotation: the number of earlier Pods of the same allocation. The first Pod does not have this annotation.
"""
SERVICE: Final = "trainshed/service"
"""Label: identifies this service's Pods."""
JOB, ATTEMPT, REPLICA = "trainshed/job", "trainshed/attempt", "trainshed/replica"
CONTAINER: Final = "replica"
"""Name of the Pod's only container."""
DIRECTORY: Final = "/var/lib/trainshed"
"""Directory of an agent and its programs."""
PYTHON_DIRECTORY: Final = "/opt/trainshed"
"""Directory of the agent's own Python in Pods with a job's image."""
HOSTS_FILE: Final = "/etc/hosts"
"""Hosts file. The agent updates the addresses of peers in this file."""
_HOSTS_CONTAINER: Final = "write-hosts"
"""The init container that copies the hosts file to a place where an agent without root rights can change it.
"""
PYTHON: Final = "python3"
"""Command in the operator's image that starts a Python of the service's version."""
PYTHON_CONTAINER: Final = "carry-python"
"""The init container that copies the operator's Python to a volume, for Pods with a job's image."""
_SCRATCH, _SHM, _CACHE, _CARRIED, _HOSTS = "scratch", "shm", "cache", "python", "hosts"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def pod_name(need: NodeNeed, allocation: AllocationName, again: int = 0) -> str:
    """Return the name of a replica's Pod. It consists of the hostname, the attempt, the number of the
    allocation, and `again`, the number of earlier Pods, unless that is 0. `again` makes the name unique,
    because an ended Pod may keep its name for a minute."""
    base = _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-") or f"trainshed-{allocation.job_uid}"
    # Shorten the first part of the name: the API allows 253 characters, some of which the suffix needs.
    return f"{base[:230]}-{allocation.attempt}-{allocation.index}" + (f"-{again}" if again else "")


def predecessor_count(pod: Pod) -> int:
    """Return the number of earlier Pods of this Pod's allocation."""
    written = (pod.metadata.annotations or {}).get(PREDECESSORS, "")
    return int(written) if written.isdecimal() and len(written) < 9 else 0


def allocation_of(pod: Pod, service: str) -> AllocationName | None:
    """Return the allocation of a Pod, or None if the Pod does not belong to this service."""
    if (pod.metadata.labels or {}).get(SERVICE) != service:
        return None
    try:
        name = AllocationName.parse((pod.metadata.annotations or {}).get(ALLOCATION, ""))
    except ValueError:
        return None
    return name if name.service == service else None


def pod(
    settings: KubernetesSettings,
    route: KubernetesRoute,
    accelerator: Accelerator | None,
    allocation: AllocationName,
    need: NodeNeed,
    *,
    command: Sequence[str],
    cache: str,
    beside: Sequence[str] = (),
    again: int = 0,
    avoid: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the manifest of the Pod with the needs of one replica.

    Args:
        avoid: Nodes on which the Pod must not run; None = the Pod must run on the node of `need`.
        accelerator: The cluster's name of the devices; None = no devices.
        command: Starts the agent.
        cache: The service's cache directory, which has the same path in Pods.
        beside: Further directories of content, which also have the same paths in Pods.
        again: Number of earlier Pods of the allocation.
    """
    own_selector = dict(route.node_selector) | dict(accelerator.node_selector if accelerator else {})
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as:
        own = settings.run_as
        context |= {"runAsNonRoot": True, "runAsUser": own, "runAsGroup": own, "fsGroup": own}
    else:
        context |= {"runAsUser": 0}
    spec: dict[str, Any] = {
        # Kubernetes must not restart programs, because only the service decides whether a replica may
        # restart.
        "restartPolicy": "Never",
        # Kubernetes must wait longer than the programs' grace period, so that the agent can report their
        # ends.
        "terminationGracePeriodSeconds": math.ceil(settings.grace) + 10,
        "hostname": _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-")[:63].rstrip("-"),
        "enableServiceLinks": False,
        # Programs are not trusted, so they receive no credentials of the cluster.
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
            *([_python_container(settings)] if need.image else []),
            *([_hosts_container(settings)] if _has_own_hosts(settings, need) else []),
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
            "name": pod_name(need, allocation, again),
            "namespace": namespace(need),
            "labels": _labels(settings, allocation, need),
            "annotations": {
                ALLOCATION: str(allocation),
                **({PREDECESSORS: str(again)} if again else {}),
                **(kueue.annotations(need) if settings.queue == "kueue" else {}),
                # Autoscalers must not evict a Pod to save nodes, because its replica would have to restart.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": spec,
    }


def namespace(need: NodeNeed) -> str:
    return need.owner.account or "default"


def escape(argument: str) -> str:
    """Escape an argument of a container. Kubernetes would replace $(NAME) with a variable, and $$ with $."""
    return argument.replace("$", "$$")


def _labels(settings: KubernetesSettings, allocation: AllocationName, need: NodeNeed) -> dict[str, str]:
    pool, _, _ = need.replica.partition("-")
    labels = {
        "app.kubernetes.io/name": "training-job",
        "app.kubernetes.io/instance": f"job-{allocation.job_uid}",
        "app.kubernetes.io/component": pool,
        "app.kubernetes.io/managed-by": "trainshed",
        SERVICE: allocation.service,
        JOB: str(JobUid(allocation.job_uid)),
        ATTEMPT: str(allocation.attempt),
        REPLICA: need.replica,
        **(kueue.labels(allocation, settings.local_queue) if settings.queue == "kueue" else {}),
    }
    return {key: value for key, value in labels.items() if value}


def _affinity(operator: Literal["In", "NotIn"], nodes: Collection[str]) -> dict[str, Any]:
    """Return a node affinity that requires (`In`) or excludes (`NotIn`) the given nodes. It is used instead
    of `nodeName`, as in DaemonSets, so that the scheduler still checks resources and taints."""
    fields = [{"key": "metadata.name", "operator": operator, "values": [node]} for node in sorted(nodes)]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms} if fields else {}


def _tolerations(route: KubernetesRoute) -> list[dict[str, Any]]:
    """Return the operator's tolerations, and two unlimited tolerations for nodes that are not ready or
    unreachable. Without these two, Kubernetes would end the Pods on such nodes after a fixed time, although
    their programs may still run. The service counts the programs as lost only when their agent has been
    silent for a whole lease (a setting, in seconds).
    """
    own = [
        {key: value for key, value in (("key", toleration.key), ("operator", toleration.operator)) if value}
        | ({"value": toleration.value} if toleration.operator == "Equal" else {})
        | ({"effect": toleration.effect} if toleration.effect else {})
        for toleration in route.tolerations
    ]
    return own + [
        {"key": f"{CONDITION_PREFIX}{state}", "operator": "Exists", "effect": "NoExecute"}
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
        command = (*_COPIED_PYTHON, *command[1:])
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": need.image or settings.image,
        "command": [escape(argument) for argument in command],
        # The service writes the agent's startup data to standard input once.
        "stdin": True,
        "stdinOnce": True,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # Use the end of the log as the termination message, because it explains why an agent could not start.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _SCRATCH, "mountPath": DIRECTORY},
            {"name": _SHM, "mountPath": "/dev/shm"},
            *([{"name": _CARRIED, "mountPath": PYTHON_DIRECTORY, "readOnly": True}] if need.image else []),
            *(
                [{"name": _HOSTS, "mountPath": HOSTS_FILE, "subPath": _HOSTS}]
                if _has_own_hosts(settings, need)
                else []
            ),
            *(_content_mount(settings, number, path) for number, path in enumerate(sent)),
        ],
    }
    if not need.image:
        # A program in a job's own image starts in the image's working directory. All other programs start in
        # `DIRECTORY`.
        container["workingDir"] = DIRECTORY
    return container


_COPY_SCRIPT: Final = Path(python_copy.__file__).read_text("utf-8")
_COPIED_PYTHON: Final = (
    f"{PYTHON_DIRECTORY}/lib/{python_copy.LOADER}",
    "--library-path",
    f"{PYTHON_DIRECTORY}/lib",
    f"{PYTHON_DIRECTORY}/bin/python3",
)


def _python_container(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the init container that copies the operator's Python for the job's image."""
    return _init_container(settings, PYTHON_CONTAINER, _COPY_SCRIPT, _CARRIED, f"/{_CARRIED}")


def _hosts_container(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the init container that copies the Pod's hosts file, so that the agent can add the addresses of
    peers to the copy."""
    script = f"import shutil,sys;shutil.copyfile('{HOSTS_FILE}',sys.argv[1]+'/{_HOSTS}')"
    return _init_container(settings, _HOSTS_CONTAINER, script, _HOSTS, f"/{_HOSTS}")


def _has_own_hosts(settings: KubernetesSettings, need: NodeNeed) -> bool:
    """Return whether the Pod needs its own copy of the hosts file. It does if replicas find their peers by
    name and the agent cannot change the original, which belongs to root."""
    return need.gang_size > 1 and settings.run_as != 0


def _init_container(
    settings: KubernetesSettings, name: str, script: str, volume: str, path: str
) -> dict[str, Any]:
    """Return an init container that uses the operator's image and runs a Python script. The script's argument
    is the directory of a volume."""
    amounts = {"cpu": "100m", "memory": "128Mi"}
    return {
        "name": name,
        "image": settings.image,
        "command": [PYTHON, "-I", "-S", "-c", escape(script), path],
        # For each Pod, Kubernetes reserves the larger of two amounts: the init container's and the main
        # container's. These amounts are small, so that the main container's amounts decide.
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": volume, "mountPath": path}],
    }


def _content_mount(settings: KubernetesSettings, number: int, path: str) -> dict[str, Any]:
    """Return the mount of a directory with files for programs and agents. `number`: 0 = the cache, 1 and
    higher = further directories."""
    if number and settings.cache_claim:
        return {"name": _CACHE, "mountPath": path, "subPath": _subdirectory(path)}
    return {"name": _volume_name(number), "mountPath": path}


def _volume_name(number: int) -> str:
    return f"sent-{number}" if number else _CACHE


def _subdirectory(path: str) -> str:
    """Return the name of a subdirectory of a persistent cache. It stores the content that Pods see at `path`,
    which is a directory outside the cache."""
    return f"beside-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _volumes(settings: KubernetesSettings, need: NodeNeed, beside: Sequence[str]) -> list[Mapping[str, Any]]:
    where: dict[str, Any] = {"name": _CACHE}
    if settings.cache_claim:
        where["persistentVolumeClaim"] = {"claimName": settings.cache_claim}
    elif settings.cache:
        where["hostPath"] = {"path": settings.cache, "type": "DirectoryOrCreate"}
    else:
        where["emptyDir"] = {}
    return [
        {"name": _SCRATCH, "emptyDir": {}},
        # Set the size of /dev/shm, because the default of 64 MiB is too small for data-loading workers.
        {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(need.memory_bytes)}},
        where,
        *([{"name": _CARRIED, "emptyDir": {}}] if need.image else []),
        *([{"name": _HOSTS, "emptyDir": {}}] if _has_own_hosts(settings, need) else []),
        *_further_volumes(settings, beside),
    ]


def _further_volumes(settings: KubernetesSettings, beside: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    """Return the volumes for `beside`, the directories outside the cache whose files Pods also need. If the
    cache is in a PersistentVolumeClaim, the result is empty, because that volume also stores these
    directories.

    The volumes persist if the cache does and Pods run as root. Without root rights, they are deleted together
    with the Pod, because the kubelet creates hostPath directories that only root can write.
    """
    if settings.cache_claim:
        return
    is_persistent = settings.cache and settings.run_as == 0
    for number, path in enumerate(beside, 1):
        host_path = {"path": f"{settings.cache}/{_subdirectory(path)}", "type": "DirectoryOrCreate"}
        yield {
            "name": _volume_name(number),
            **({"hostPath": host_path} if is_persistent else {"emptyDir": {}}),
        }
