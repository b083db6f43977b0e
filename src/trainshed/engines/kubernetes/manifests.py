"""The Pod of a hold, and the Service by which Pods find each other, as they are sent to the API. Pure.

A user's words never get into a Pod: its command is the agent's, and what the agent is to run it is told on
its standard input.
"""

import functools
import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainshed.core.names import JobUid
from trainshed.engines.kubernetes import carried_python, kueue, quantities
from trainshed.engines.kubernetes.objects import Pod
from trainshed.engines.kubernetes.routes import NODES_OWN, KubernetesRoute
from trainshed.engines.kubernetes.settings import Accelerator, KubernetesSettings
from trainshed.engines.local import hosts_file
from trainshed.engines.remote.cluster import HoldName, NodeNeed

HOLD: Final = "trainshed/hold"
"""Annotation: the whole name of the hold that the Pod is."""
AGAIN: Final = "trainshed/again"
"""Annotation: how many Pods of that hold there were before it; none = it is the first."""
SERVICE: Final = "trainshed/service"
"""Label: tells this service's Pods from those of others."""
JOB, ATTEMPT, REPLICA = "trainshed/job", "trainshed/attempt", "trainshed/replica"
HOSTNAME: Final = "trainshed/hostname"
"""Annotation: the hostname of the replica that is there now, where the Pod was made for another one."""
CONTAINER: Final = "replica"
"""The one container of a Pod."""
DISCOVERY: Final = "trainshed"
"""The headless Service of a namespace, by which hostnames resolve."""
DIRECTORY: Final = "/var/lib/trainshed"
"""Where an agent and its programs write."""
CARRIED: Final = "/opt/trainshed"
"""Where the agent's own Python is in Pods whose image is a job's."""
HOSTS_FILE: Final = hosts_file.PATH
"""Where programs find each other by name: the agent keeps it up to date."""
_PREPARES: Final = "write-hosts"
"""The init container that makes one which the agent may write, if that is not root."""
AGENT: Final = f"{CARRIED}/agent"
"""Where an image has the agent's code, if it has (`content.baked`); the Python that is carried, too."""
CARRIES: Final = "carry-python"
"""The init container that brings it there."""
_SCRATCH, _SHM, _CACHE, _CARRIED, _HOSTS = "scratch", "shm", "cache", "python", "hosts"
_CLAIM: Final = "claim:"
"""How a `cache` begins that is a volume."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def pod_name(need: NodeNeed, hold: HoldName, again: int = 0) -> str:
    """Of a replica's Pod: its hostname, attempt, which of the attempt's holds it is, and the how many-th of
    that, if it is not the first: what has ended may keep its name for a minute."""
    base = _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-") or f"trainshed-{hold.job_uid}"
    # A hostname is at most 63 long, as a Pod's name should be that kubectl shows beside others.
    return f"{base[:230]}-{hold.attempt}-{hold.part}" + (f"-{again}" if again else "")


def again_of(pod: Pod) -> int:
    """How many Pods of its hold there were before."""
    written = (pod.metadata.annotations or {}).get(AGAIN, "")
    return int(written) if written.isdecimal() and len(written) < 9 else 0


def hold_of(pod: Pod, service: str) -> HoldName | None:
    """The hold that a Pod is; None = it is none of this service's."""
    if (pod.metadata.labels or {}).get(SERVICE) != service:
        return None
    try:
        name = HoldName.parse((pod.metadata.annotations or {}).get(HOLD, ""))
    except ValueError:
        return None
    return name if name.service == service else None


def selector(service: str) -> str:
    """What picks this service's Pods out of a list."""
    return f"{SERVICE}={service}"


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
    group: str = "",
) -> dict[str, Any]:
    """The Pod that holds what one replica needs on the named node, or with `avoid` on any but those.
    `accelerator`: how the cluster calls its devices. `command`: starts the agent. `cache`: the service's
    cache directory, which Pods have at the same path. `beside`: others of which they are sent something,
    likewise. `again`: how many Pods of the hold there were before. `group`: the PodGroup that it is of."""
    own_selector = dict(route.node_selector) | dict(
        accelerator.node_selector if accelerator else {}
    )
    spec: dict[str, Any] = {
        # What has ended is started again, if at all, by the service, which knows whether it may be.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _end_seconds(settings),
        "hostname": _hostname(need),
        "subdomain": DISCOVERY,
        "dnsConfig": {"searches": [f"{DISCOVERY}.{namespace(settings, need)}.svc.cluster.local"]},
        "enableServiceLinks": False,
        # Programs are strangers: they get no token of the cluster's.
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(settings),
        "tolerations": _tolerations(route),
        "containers": [_container(settings, accelerator, need, command, (cache, *beside))],
        "volumes": _volumes(settings, need, beside),
    }
    affinity = _only_on(need.node) if avoid is None else _not_on(avoid)
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
        "schedulingGroup": {"podGroupName": group} if group else {},
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
    }
    spec |= {key: value for key, value in optional.items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(need, hold, again),
            "namespace": namespace(settings, need),
            "labels": _labels(settings, hold, need),
            "annotations": {
                HOLD: str(hold),
                **({AGAIN: str(again)} if again else {}),
                **(kueue.annotations(need) if settings.queue == "kueue" else {}),
                # Autoscalers must not move what cannot be moved.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": spec,
    }


def discovery(settings: KubernetesSettings, where: str) -> dict[str, Any]:
    """The headless Service of a namespace: each Pod's hostname is a name below it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": DISCOVERY,
            "namespace": where,
            "labels": {
                "app.kubernetes.io/name": DISCOVERY,
                "app.kubernetes.io/managed-by": DISCOVERY,
            },
        },
        "spec": {
            "clusterIP": "None",
            "selector": {"app.kubernetes.io/managed-by": DISCOVERY},
            # Peers look for each other before they are ready for anything.
            "publishNotReadyAddresses": True,
        },
    }


def namespace(settings: KubernetesSettings, need: NodeNeed) -> str:
    return need.owner.account or settings.namespace or "default"


def escaped(argument: str) -> str:
    """An argument that a Pod's container gets as it is: Kubernetes puts variables in the place of $(NAME),
    and $ in that of $$."""
    return argument.replace("$", "$$")


def _labels(settings: KubernetesSettings, hold: HoldName, need: NodeNeed) -> dict[str, str]:
    labels = {
        **job_labels(hold),
        **labels_of(need),
        **(kueue.labels(hold, settings.local_queue) if settings.queue == "kueue" else {}),
    }
    return {key: value for key, value in labels.items() if value}


def labels_of(need: NodeNeed) -> dict[str, str]:
    """Of whose replica a Pod is, which may be another one than it was made for."""
    pool, _, _ = need.replica.partition("-")
    own = {"app.kubernetes.io/component": pool, REPLICA: need.replica}
    if need.job_uid:
        own |= {
            "app.kubernetes.io/instance": f"job-{need.job_uid}",
            JOB: str(need.job_uid),
            ATTEMPT: str(need.attempt),
        }
    return own


def job_labels(hold: HoldName) -> dict[str, str]:
    """Of whatever is made for an attempt."""
    return {
        "app.kubernetes.io/name": "training-job",
        "app.kubernetes.io/instance": f"job-{hold.job_uid}",
        "app.kubernetes.io/managed-by": DISCOVERY,
        SERVICE: hold.service,
        JOB: str(JobUid(hold.job_uid)),
        ATTEMPT: str(hold.attempt),
    }


def _hostname(need: NodeNeed) -> str:
    return _NOT_IN_NAMES.sub("-", need.hostname.lower()).strip("-")[:63].rstrip("-")


def _end_seconds(settings: KubernetesSettings) -> int:
    """More than programs get, for what is told after their end."""
    return math.ceil(settings.grace) + 10


def _only_on(node: str) -> dict[str, Any]:
    """As a DaemonSet's Pods have it: the scheduler goes by it, and still looks at room and taints, which it
    would not if the Pod named its node itself."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _not_on(nodes: Collection[str]) -> dict[str, Any]:
    if not nodes:
        return {}
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in sorted(nodes)
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _tolerations(route: KubernetesRoute) -> list[dict[str, Any]]:
    """Beside the operator's: of a node that is not ready or not heard of, for good. What runs there may be
    well, and is lost when its agent's lease is over; Kubernetes would end it by the clock."""
    own = [
        {key: value for key, value in (("key", one.key), ("operator", one.operator)) if value}
        | ({"value": one.value} if one.operator == "Equal" else {})
        | ({"effect": one.effect} if one.effect else {})
        for one in route.tolerations
    ]
    return own + [
        {"key": f"{NODES_OWN}{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]


def _pod_security(settings: KubernetesSettings) -> dict[str, Any]:
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as:
        own = settings.run_as
        context |= {"runAsNonRoot": True, "runAsUser": own, "runAsGroup": own, "fsGroup": own}
    else:
        context |= {"runAsUser": 0}
    return context


def _container(
    settings: KubernetesSettings,
    accelerator: Accelerator | None,
    need: NodeNeed,
    command: Sequence[str],
    sent: Sequence[str],
) -> dict[str, Any]:
    requests: dict[str, Any] = {
        "cpu": quantities.cpus(need.vcpus / settings.overcommit),
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
        # The agent's document comes there, once.
        "stdin": True,
        "stdinOnce": True,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # Why an agent could not begin is told with its end.
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
        # Programs of a job's own image begin where that says.
        container["workingDir"] = DIRECTORY
    if settings.image_pull_policy:
        container["imagePullPolicy"] = settings.image_pull_policy
    return container


_CARRIED_COMMAND: Final = (
    f"{CARRIED}/lib/{carried_python.LOADER}",
    "--library-path",
    f"{CARRIED}/lib",
    f"{CARRIED}/bin/python3",
)


def _carrying(settings: KubernetesSettings) -> dict[str, Any]:
    """Copies the Python of the operator's image to where the job's image can run it."""
    # Where it is to be, the image itself may have the agent's code.
    return _preparing(settings, CARRIES, _carrier(), _CARRIED, f"/{_CARRIED}")


def _making_hosts(settings: KubernetesSettings) -> dict[str, Any]:
    """Copies the hosts file that Kubernetes has made of a Pod, for the agent to go on with."""
    script = f"import shutil,sys;shutil.copyfile('{HOSTS_FILE}',sys.argv[1]+'/{_HOSTS}')"
    return _preparing(settings, _PREPARES, script, _HOSTS, f"/{_HOSTS}")


def _has_own_hosts(settings: KubernetesSettings, need: NodeNeed) -> bool:
    """Peers are to be found by name, and the file that Kubernetes makes is root's."""
    return need.gang_size > 1 and settings.run_as != 0


def _preparing(
    settings: KubernetesSettings, name: str, script: str, volume: str, path: str
) -> dict[str, Any]:
    """An init container of the operator's image: a Python script that is given the directory of a volume."""
    amounts = {"cpu": "100m", "memory": "128Mi"}
    container: dict[str, Any] = {
        "name": name,
        "image": settings.image,
        "command": [settings.python, "-I", "-S", "-c", escaped(script), path],
        # Far less than the container after it has: of the two the larger counts.
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": volume, "mountPath": path}],
    }
    if settings.image_pull_policy:
        container["imagePullPolicy"] = settings.image_pull_policy
    return container


@functools.cache
def _carrier() -> str:
    return Path(carried_python.__file__).read_text("utf-8")


def _sent_mount(settings: KubernetesSettings, number: int, path: str) -> dict[str, Any]:
    """Of one of the directories of which Pods are sent something; the first is the cache's."""
    if number and settings.cache.startswith(_CLAIM):
        return {"name": _CACHE, "mountPath": path, "subPath": _beside(path)}
    return {"name": _sent(number), "mountPath": path}


def _sent(number: int) -> str:
    return f"sent-{number}" if number else _CACHE


def _beside(path: str) -> str:
    """Where in a kept cache the files of another directory are."""
    return f"beside-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _volumes(
    settings: KubernetesSettings, need: NodeNeed, beside: Sequence[str]
) -> list[Mapping[str, Any]]:
    where: dict[str, Any] = {"name": _CACHE}
    if settings.cache.startswith(_CLAIM):
        where["persistentVolumeClaim"] = {"claimName": settings.cache.removeprefix(_CLAIM)}
    elif settings.cache:
        where["hostPath"] = {"path": settings.cache, "type": "DirectoryOrCreate"}
    else:
        where["emptyDir"] = {}
    return [
        {"name": _SCRATCH, "emptyDir": {}},
        # 64 MiB, which containers have of it by themselves, are too few for workers that load data.
        {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(need.memory_bytes)}},
        where,
        *([{"name": _CARRIED, "emptyDir": {}}] if need.image else []),
        *([{"name": _HOSTS, "emptyDir": {}}] if _has_own_hosts(settings, need) else []),
        *_volumes_beside(settings, beside),
    ]


def _volumes_beside(
    settings: KubernetesSettings, beside: Sequence[str]
) -> Iterable[Mapping[str, Any]]:
    """Kept with the cache, where that can be: a kubelet makes directories of its node for root alone."""
    if settings.cache.startswith(_CLAIM):
        return
    kept = settings.cache and settings.run_as == 0
    for number, path in enumerate(beside, 1):
        place = {"path": f"{settings.cache}/{_beside(path)}", "type": "DirectoryOrCreate"}
        yield {"name": _sent(number), **({"hostPath": place} if kept else {"emptyDir": {}})}
