"""Declares and checks the settings of the Kubernetes engine: the table `[engines.kubernetes]`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from trainshed_cluster.kubernetes.registries import Registries
from trainshed_cluster.remote.lease import MIN_LEASE
from trainshed_cluster.remote.options import (
    MachineSelector,
    parse_table,
    unknown_accelerators,
    wrong_machines,
)

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_Namespace = Annotated[str, msgspec.Meta(pattern=rf"^{_LABEL}$")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
_Project = Annotated[str, msgspec.Meta(pattern=r"^[^/\x00-\x20]{1,100}$")]
_Address = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{0,253}$")]
_Path = Annotated[str, msgspec.Meta(pattern=r"^(/[^\x00-\x1f]{0,500})?$")]
_Key = Annotated[
    str, msgspec.Meta(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]
_Value = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]
_Image = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,500}$")]
_Resource = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]{1,253}/[A-Za-z0-9_.-]{1,63}$")]
_Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]
_Selector = dict[_Key, _Value]


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Allows jobs to run on nodes with a matching taint. The format is that of a toleration in a Pod."""

    #: "" = every key.
    key: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_./-]{0,317}$")] = ""
    operator: Literal["Equal", "Exists"] = "Exists"
    value: _Value = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[engines.kubernetes.accelerators]`: how the cluster identifies the devices of one public
    accelerator type."""

    #: Name of the resource by which Pods request these devices. The devices' plugin defines it.
    resource: _Resource = "nvidia.com/gpu"
    #: Labels of the nodes with these devices; {} = all nodes with the resource.
    node_selector: _Selector = {}


class MachineRoute(MachineSelector, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[engines.kubernetes.machines]]`: the options of Pods for some machine types. A field that
    is None has its value from `[engines.kubernetes]`."""

    node_selector: _Selector | None = None
    tolerations: Annotated[list[Toleration], msgspec.Meta(max_length=50)] | None = None
    runtime_class: _Name | None = None
    priority_class: _Name | None = None


class KubernetesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[engines.kubernetes]`."""

    #: Image of the Pods for prebuilt runtimes. It only needs a python3 of the service's version
    #: (deploy/pods). Pods with a job's image receive a copy of that Python.
    image: _Image
    #: Name or address at which Pods reach the service; None = the name of the service's machine.
    address: _Address | None = None
    #: Port of this service to which Pods connect; 0 = any free port.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: Kubeconfig file; None = the service account of the service's own Pod, else $KUBECONFIG, else
    #: ~/.kube/config.
    kubeconfig: _Path | None = None
    #: Namespace of Pods by project id ("*" = all other projects); {} = the kubeconfig's namespace, or
    #: `default`, for all projects. Jobs of a project without an entry are rejected.
    namespaces: dict[_Project, _Namespace] = {}
    #: Names of the secrets with credentials for pulling images, in the namespace of the Pods.
    image_pull_secrets: Annotated[list[_Name], msgspec.Meta(max_length=20)] = []
    #: Registries (HOST[:PORT]) to which the service connects without TLS.
    insecure_registries: Annotated[list[_Host], msgspec.Meta(max_length=50)] = []
    #: Service account of the Pods, which do not receive its token; None = the namespace's default account.
    service_account: _Name | None = None
    #: User id of the Pods' processes. 0 = root, which the Pod Security level `restricted` rejects.
    run_as: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 2)] = 1000
    #: Storage of the content that Pods receive. /PATH = a directory of each node, shared by the Pods there.
    #: claim:NAME = the volume of the PersistentVolumeClaim NAME. None = each Pod stores the content itself,
    #: for its lifetime.
    cache: Annotated[str, msgspec.Meta(pattern=rf"^(/[^\x00-\x1f]{{0,500}}|claim:{_LABEL})?$")] | None = None
    #: Number of vCPUs of a machine type that correspond to one CPU of the cluster.
    overcommit: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.0
    #: Labels that a node must have to run jobs.
    node_selector: _Selector = {}
    tolerations: Annotated[list[Toleration], msgspec.Meta(max_length=50)] = []
    runtime_class: _Name = ""
    priority_class: _Name = ""
    #: Scheduler of the Pods; None = the cluster's default.
    scheduler: _Name | None = None
    #: "trainshed" = the service queues jobs and assigns free nodes; "kueue" = Kueue admits all Pods of a job
    #: together, by Kueue's quotas and priorities, and the cluster chooses the nodes.
    queue: Literal["trainshed", "kueue"] = "trainshed"
    #: Name of Kueue's LocalQueue in each namespace of jobs.
    local_queue: _Name = ""
    #: By public accelerator type: how the cluster identifies the devices.
    accelerators: dict[str, Accelerator] = {}
    #: Different options for some machine types; the first match applies.
    machines: Annotated[list[MachineRoute], msgspec.Meta(max_length=200)] = []
    #: Seconds without contact to the service after which an agent ends its programs. The service then counts
    #: the Pod as lost, unless Kubernetes has already reported its end.
    lease: Annotated[float, msgspec.Meta(ge=MIN_LEASE, le=86400)] = 300.0
    #: Grace period in seconds for programs whose Pod is evicted, or deleted by another client.
    grace: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0
    #: Number of minutes for which pulling an image may fail before the job fails.
    pull_minutes: Annotated[float, msgspec.Meta(ge=0.05, le=1440)] = 10.0

    @property
    def kubeconfig_path(self) -> str | None:
        """Return the path of the kubeconfig; None = use the service account of the service's own Pod."""
        if self.kubeconfig:
            return self.kubeconfig
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return None
        return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())

    @property
    def cache_claim(self) -> str | None:
        """Return the name of the cache's PersistentVolumeClaim; None = the cache is not in the volume of a
        claim."""
        kind, _, name = (self.cache or "").partition(":")
        return name if kind == "claim" else None

    @property
    def registries(self) -> Registries:
        """Return the object that reads the configurations of jobs' images from their registries."""
        logins = Path(os.environ.get("REGISTRY_AUTH_FILE") or "~/.docker/config.json").expanduser()
        return Registries(logins, tuple(self.insecure_registries))


def parse(table: Mapping[str, Any]) -> KubernetesSettings:
    """Parse the table. Raises ValueError with all errors, one per line."""
    missing = (
        "image: it is missing; set the image of Pods, with a Python of the service's version "
        "(docs/kubernetes.md describes how to build one)"
    )
    absent = () if "image" in table else (missing,)
    return parse_table("kubernetes", KubernetesSettings, table, _wrong, absent)


def _wrong(settings: KubernetesSettings) -> Iterator[str]:
    yield from _wrong_accelerators(settings)
    yield from wrong_machines(settings.machines, "kubernetes")
    if settings.queue == "kueue" and not settings.local_queue:
        yield ('local_queue: it is missing, and queue = "kueue" needs it; set it to the LocalQueue of jobs')
    if settings.queue != "kueue" and settings.local_queue:
        yield 'local_queue: it is Kueue\'s; set queue = "kueue" to use it, or remove it'


def _wrong_accelerators(settings: KubernetesSettings) -> list[str]:
    wrong = [f"accelerators: {line}" for line in unknown_accelerators(settings.accelerators)]
    seen: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
    for name, accelerator in settings.accelerators.items():
        key = accelerator.resource, frozenset(accelerator.node_selector.items())
        if (other := seen.setdefault(key, name)) != name:
            wrong.append(
                f"accelerators.{name}: {accelerator.resource} of the same nodes is already used for {other}; "
                "distinguish them by node_selector"
            )
    return wrong
