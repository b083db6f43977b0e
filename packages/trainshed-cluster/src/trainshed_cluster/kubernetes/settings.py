"""Declares and checks the settings of the Kubernetes engine: the table `[engines.kubernetes]`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from trainshed_cluster.kubernetes.registries import Registries
from trainshed_cluster.remote.lease import SHORTEST_LEASE
from trainshed_cluster.remote.options import (
    ForMachines,
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
    str,
    msgspec.Meta(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"),
]
_Value = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]
_Image = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,500}$")]
_Resource = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]{1,253}/[A-Za-z0-9_.-]{1,63}$")]
_Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]
_Selector = dict[_Key, _Value]


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A toleration as in a Pod: jobs may run on nodes with that taint."""

    #: "" = every one.
    key: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_./-]{0,317}$")] = ""
    operator: Literal["Equal", "Exists"] = "Exists"
    value: _Value = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[engines.kubernetes.accelerators]`: the cluster's name of the devices of one public
    type."""

    #: Resource name of their device plugin.
    resource: _Resource = "nvidia.com/gpu"
    #: Labels of the nodes that have those; {} = all that have the resource.
    node_selector: _Selector = {}


class MachineRoute(ForMachines, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[engines.kubernetes.machines]]`: where Pods of some machine types go. None = as in the
    plain settings."""

    node_selector: _Selector | None = None
    tolerations: Annotated[list[Toleration], msgspec.Meta(max_length=50)] | None = None
    runtime_class: _Name | None = None
    priority_class: _Name | None = None


class KubernetesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[engines.kubernetes]`."""

    #: Image of the Pods that prebuilt runtimes run in: its python3 is of the service's version, and it
    #: needs no more (deploy/pods). Pods with an image of a job's have this Python brought to them.
    image: _Image
    #: Name or address at which Pods reach the service; None = this machine's name.
    address: _Address | None = None
    #: Port of that; 0 = any that is free.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: Kubeconfig file; None = a Pod's own service account if the service runs in one, else $KUBECONFIG, else
    #: ~/.kube/config.
    kubeconfig: _Path | None = None
    #: Namespace of Pods by project id ("*" = all others); {} = the kubeconfig's, or `default`, for all. Jobs
    #: of a project without an entry are refused.
    namespaces: dict[_Project, _Namespace] = {}
    #: Names of the namespace's secrets by which images are pulled.
    image_pull_secrets: Annotated[list[_Name], msgspec.Meta(max_length=20)] = []
    #: Registries (HOST[:PORT]) that the service reaches without TLS.
    insecure_registries: Annotated[list[_Host], msgspec.Meta(max_length=50)] = []
    #: Service account of the Pods, which get no token of it; None = the namespace's default one.
    service_account: _Name | None = None
    #: User id of the Pods; 0 = root, which Pod Security's `restricted` does not admit.
    run_as: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 2)] = 1000
    #: Where the environments that Pods are sent are kept: /PATH = in that directory of the nodes, for all
    #: Pods there; claim:NAME = in a volume of that claim; None = in each Pod, as long as it lives.
    cache: (
        Annotated[str, msgspec.Meta(pattern=rf"^(/[^\x00-\x1f]{{0,500}}|claim:{_LABEL})?$")] | None
    ) = None
    #: How many of a machine type's vCPUs one CPU of the cluster stands for.
    overcommit: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.0
    #: Labels of the nodes that take jobs.
    node_selector: _Selector = {}
    tolerations: Annotated[list[Toleration], msgspec.Meta(max_length=50)] = []
    runtime_class: _Name = ""
    priority_class: _Name = ""
    #: Scheduler of the Pods; None = the cluster's default.
    scheduler: _Name | None = None
    #: Whose queue jobs wait in: "trainshed" gives them nodes that are free; "kueue" has Kueue admit each
    #: job as a whole, by its quotas and priorities, and the cluster choose nodes.
    queue: Literal["trainshed", "kueue"] = "trainshed"
    #: Name of Kueue's LocalQueue in each namespace of jobs.
    local_queue: _Name = ""
    #: The cluster's name of the devices of each public accelerator type.
    accelerators: dict[str, Accelerator] = {}
    #: Where Pods of some machine types go instead; the first match counts.
    machines: Annotated[list[MachineRoute], msgspec.Meta(max_length=200)] = []
    #: Seconds without contact after which an agent ends its programs, and its Pod is lost unless the cluster
    #: reports its end before. The service may be away for that long.
    lease: Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=86400)] = 300.0
    #: Grace period in seconds of programs whose Pod is evicted or deleted by others.
    grace: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0
    #: Minutes for which pulling an image may fail before the job fails.
    pull_minutes: Annotated[float, msgspec.Meta(ge=0.05, le=1440)] = 10.0

    @property
    def kubeconfig_path(self) -> str | None:
        """Path of the kubeconfig; None = the service runs in a Pod, which is told how the cluster is
        reached."""
        if self.kubeconfig:
            return self.kubeconfig
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return None
        return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())

    @property
    def cache_claim(self) -> str | None:
        """Name of the volume claim in which that cache is; None = it is in none."""
        kind, _, name = (self.cache or "").partition(":")
        return name if kind == "claim" else None

    @property
    def registries(self) -> Registries:
        """How the service reads the configuration of jobs' images."""
        logins = Path(os.environ.get("REGISTRY_AUTH_FILE") or "~/.docker/config.json").expanduser()
        return Registries(logins, tuple(self.insecure_registries))


def parse(table: Mapping[str, Any]) -> KubernetesSettings:
    """Parse the table. Raises ValueError with everything that is wrong with it, one line each."""
    missing = (
        "image: it is missing; name the image that Pods run in, with a Python of the service's version "
        "(docs/kubernetes.md says how to build one)"
    )
    absent = () if "image" in table else (missing,)
    return parse_table("kubernetes", KubernetesSettings, table, _wrong, absent)


def _wrong(settings: KubernetesSettings) -> Iterator[str]:
    yield from _wrong_accelerators(settings)
    yield from wrong_machines(settings.machines, "kubernetes")
    if settings.queue == "kueue" and not settings.local_queue:
        yield (
            'local_queue: it is missing, and queue = "kueue" needs it; name the LocalQueue that jobs wait in'
        )
    if settings.queue != "kueue" and settings.local_queue:
        yield 'local_queue: it is Kueue\'s; set queue = "kueue" to have jobs wait there, or take it away'


def _wrong_accelerators(settings: KubernetesSettings) -> list[str]:
    wrong = [f"accelerators: {line}" for line in unknown_accelerators(settings.accelerators)]
    seen: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
    for name, accelerator in settings.accelerators.items():
        key = accelerator.resource, frozenset(accelerator.node_selector.items())
        if (other := seen.setdefault(key, name)) != name:
            wrong.append(
                f"accelerators.{name}: {accelerator.resource} on the same nodes stands for {other} already; "
                "tell them apart by node_selector"
            )
    return wrong
