"""Turns a launch plan and a slot into the document by which a shim starts a program. Pure, except for the
lookup of secrets."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.catalog import regions
from trainshed.core.launch import LOST_REDUCERS, REDUCTION_PACKAGES, ImageRoot, LaunchPlan
from trainshed.core.secrets import SecretRef, named_in, resolved
from trainshed.engines.launch import environs
from trainshed.engines.launch.devices import Device
from trainshed.engines.launch.driver import NO_DRIVER, DeviceEdits, Driver, device_edits
from trainshed.engines.port import NO_ACCESS, LaunchRejected, SecretSource, ServiceAccess, Slot
from trainshed.replica import protocol
from trainshed.replica.sandbox import socket_calls, users
from trainshed.replica.system import cgroups

PROGRAM_PORT = 2222
"""The port that every replica may bind on its own address (facts/program#cluster_spec)."""

_METADATA = ("metadata.google.internal", "metadata")
"""Names of the metadata server, which TensorFlow before 2.5 takes from no variable."""

COVERED = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
)
"""Sockets of daemons that would do anything for whoever may speak to them."""

CLOSED = ("/run/munge",)
"""Directories of such sockets. By munge's a program could tell Slurm that it is the user whom agents run as:
it could have a step run outside of all that it is kept in, or end others' allocations. The directory, since a
daemon that is started again makes its socket anew."""


class HostFacts(Struct, frozen=True):
    """The facts about this machine that the engine found out at its start."""

    #: Sandbox level (`protocol.LEVEL_*`).
    level: str
    #: Control group directory for memory, as `cpu_base` and `pids_base` are for theirs; "" = none.
    memory_base: str
    cpu_base: str
    #: Memory that all replicas share.
    memory_bytes: int
    #: Tells this service from others on the machine.
    identity: str
    #: The GPUs of the machine; each replica is told which are its own.
    gpus: tuple[Device, ...] = ()
    pids_base: str = ""
    #: Processes and threads that one program gets at most, whatever the settings say; 0 = not known.
    processes: int = 0
    #: Files of the GPUs' driver.
    driver: Driver = NO_DRIVER
    #: Number of processors that programs may use; 0 = not known.
    processors: float = 0

    @property
    def namespaced(self) -> bool:
        return self.level != protocol.LEVEL_SESSION


class BuildPlace(Struct, frozen=True):
    """What the sandboxes in which the service itself installs packages and renders curves may see of this
    machine."""

    host: HostFacts
    #: Directories whose content they must not see.
    hidden: tuple[str, ...]
    #: Paths that may be read even inside those.
    visible: tuple[str, ...]


@runtime_checkable
class HasBuildPlace(Protocol):
    """Optional part of an engine: it knows the `BuildPlace` of its machine."""

    def build_place(self) -> BuildPlace:
        """Return the machine's build place. Raises EngineUnavailable before `start`."""
        ...


class SharedPaths(Struct, frozen=True):
    """The settings that all launch documents of one engine share."""

    #: Directories whose content programs must not see.
    hidden: tuple[str, ...] = ()
    #: Paths that they may only read, visible even inside hidden ones.
    read_only: tuple[Path, ...] = ()
    #: Further such paths, chosen by the operator.
    visible: tuple[str, ...] = ()
    access: ServiceAccess = NO_ACCESS
    #: The service's own environment.
    ambient: Mapping[str, str] | None = None
    #: How many processes a replica may have; 0 = any number.
    processes: int = 0
    #: Seconds between two looks at what a replica uses; 0 = nobody looks.
    usage_every: float = 0.0
    #: A replica whose files take more than its disk is ended.
    disk_enforced: bool = False
    #: Ports of the service, which programs can bind on their own address alone.
    kept_ports: tuple[int, ...] = ()
    #: Slots' journals are read again after a power cut, so that they are synced.
    outlasts_power: bool = True


Revealed = tuple[LaunchPlan, tuple[str, ...]]
"""A plan as its program is to have it, secrets and all, and the texts that must not get into its log."""


async def revealed(plans: Sequence[LaunchPlan], secrets: SecretSource | None) -> list[Revealed]:
    """Put secrets into plans, just before they go to a shim and to nobody else. Returns the plans in their
    order, each with the texts that must not get into its log.

    Plans that need no secret are returned as they are, and nothing is waited for. Raises what
    `SecretSource.values` raises.
    """
    known: dict[tuple[str, frozenset[SecretRef]], Mapping[SecretRef, str]] = {}
    shown: list[Revealed] = []
    for plan in plans:
        refs = named_in(plan.argv, plan.environ)
        if not refs:
            shown.append((plan, ()))
            continue
        if secrets is None:
            raise LaunchRejected("The job names secrets, and this engine was given no way to them.")
        # A gang's replicas mostly need the same secrets: each set is looked up once.
        key = (plan.account.project, refs)
        if key not in known:
            known[key] = await secrets.values(*key)
        argv, environ, masked = resolved(plan.argv, plan.environ, known[key])
        shown.append((replace(plan, argv=argv, environ=environ), masked))
    return shown


def launch_document(
    *,
    plan: LaunchPlan,
    slot: Slot,
    host: HostFacts,
    shared: SharedPaths,
    directory: Path,
    hosts: Path,
    logs: Path,
    lost_reducers: Path | None = None,
    masked: tuple[str, ...] = (),
    beginning: Callable[[Mapping[str, str]], protocol.WarmStart] | None = None,
) -> protocol.LaunchDocument:
    """Compose the document. `directory`: of the slot. `hosts`: the gang's hosts file. `logs`: directory of
    the replica's log. `lost_reducers`: the file that lists lost reducers, for replicas that use any.
    `masked`: texts that must not get into the log. `beginning`: tells whether a program with
    that environment begins warm."""
    image = plan.software.image
    edits = device_edits(
        slot.devices, host.gpus, host.driver, private=host.namespaced, image=_is_shown(image)
    )
    intercepts = bool(intercepted(host, shared))
    environ = _environ(
        plan,
        slot,
        host,
        shared,
        edits=edits,
        files=directory / protocol.FILES,
        lost_reducers=lost_reducers,
    )
    return protocol.LaunchDocument(
        incarnation=plan.incarnation,
        program=protocol.Program(
            argv=plan.argv,
            environ=environ,
            directory=(image.workdir or "/") if image else "",
            python_template="" if host.namespaced else plan.software.template,
        ),
        isolation=_isolation(
            plan, slot, host, shared, edits=edits, hosts=hosts, lost_reducers=lost_reducers
        ),
        limits=_limits(plan, host, shared),
        network=protocol.Network(
            address=slot.endpoint or slot.address,
            # Where replicas share the machine's address each has its own port, so that binding to the
            # wildcard address is harmless.
            cluster_port=0 if slot.endpoint else PROGRAM_PORT,
            kept_ports=shared.kept_ports,
            storage_port=endpoint_address(slot)[1],
            storage_socket=str(shared.access.storage_socket or ""),
            identity=identity(plan),
            rest_socket=str(shared.access.rest_socket or ""),
            grpc_socket=str(shared.access.grpc_socket or ""),
            certificate=str(shared.access.certificate) if intercepts else "",
        ),
        observation=protocol.Observation(
            logs=str(logs),
            outlasts_power=shared.outlasts_power,
            masked=masked,
            usage_every=shared.usage_every,
            gpus=edits.gpus,
            watch_metrics=plan.watch_metrics,
            reducers=plan.reduction.reducers,
            reducers_expected=plan.reduction.is_expected,
        ),
        warm=_warm(plan, host, beginning, environ),
    )


def _warm(
    plan: LaunchPlan,
    host: HostFacts,
    beginning: Callable[[Mapping[str, str]], protocol.WarmStart] | None,
    environ: Mapping[str, str],
) -> protocol.WarmStart:
    if plan.warm is None:
        return protocol.WarmStart()
    if not host.namespaced:
        why = "at isolation level session its Python is a copy of its own"
        return protocol.WarmStart(cold_because=why)
    if beginning is None:
        return protocol.WarmStart(cold_because="no frameworks are kept imported where it starts")
    return beginning(environ)


def _isolation(
    plan: LaunchPlan,
    slot: Slot,
    host: HostFacts,
    shared: SharedPaths,
    *,
    edits: DeviceEdits,
    hosts: Path,
    lost_reducers: Path | None,
) -> protocol.Isolation:
    software, image = plan.software, plan.software.image
    mounts = [(path, path, True) for path in shared.visible]
    mounts += _reduction_mounts(plan, lost_reducers)
    mounts += edits.mounts
    template = (software.template,) if host.namespaced and software.template else ()
    read_only = (*shared.read_only, *software.read_only, *template)
    return protocol.Isolation(
        level=host.level,
        hostname=slot.hostname if host.namespaced else "",
        hosts=str(hosts),
        users=(slot.users, users.COUNT) if slot.users else (),
        hidden=(*shared.hidden, *CLOSED),
        covered=COVERED,
        read_only=outermost(read_only),
        mounts=tuple(mounts),
        devices=edits.devices,
        buckets=plan.buckets if host.namespaced else (),
        image=image.directory if image else "",
        own_root=host.namespaced and software.own_root,
        image_user=image.user if image else "",
        roots=str(shared.access.trust or "") if intercepted(host, shared) else "",
        shm_bytes=_memory(plan, host),
    )


def _is_shown(image: ImageRoot | None) -> bool:
    """Whether a container image replaces the machine's files."""
    return image is not None and bool(image.directory)


def _limits(plan: LaunchPlan, host: HostFacts, shared: SharedPaths) -> protocol.Limits:
    return protocol.Limits(
        memory_limit=_memory(plan, host),
        memory_polling=not host.memory_base,
        cpu_weight=plan.limits.cpu_weight,
        pids_limit=cgroups.bounded(shared.processes, host.processes),
        disk_limit=plan.limits.disk,
        disk_enforced=shared.disk_enforced,
        stall_after=plan.limits.stall_after / 1e9,
        memory_base=host.memory_base,
        cpu_base=host.cpu_base,
        pids_base=host.pids_base,
        cgroup_name=f"trainshed-{host.identity}-{plan.job_uid}-{plan.attempt}-{plan.replica}",
    )


def _memory(plan: LaunchPlan, host: HostFacts) -> int:
    """Return the memory limit in bytes; 0 = none. No replica gets more than the machine has."""
    return min(plan.limits.memory, host.memory_bytes) if plan.limits.memory else 0


def identity(plan: LaunchPlan) -> str:
    """Return the identity with which the replica's endpoint speaks for it, as JSON."""
    return json.dumps(
        {
            "job_uid": str(plan.job_uid),
            "attempt": plan.attempt,
            "replica": str(plan.replica),
            "project": plan.account.project,
            "service_account": plan.account.service_account,
            "region": plan.account.region,
        }
    )


def intercepted(host: HostFacts, shared: SharedPaths) -> tuple[str, ...]:
    """Return the names of Google's hosts that lead to the replica's own endpoint."""
    if not (host.namespaced and shared.access.certificate):
        return ()
    ours = tuple(regions.apis()) if shared.access.rest_socket else ()
    return (*regions.STORAGE, *_METADATA, *ours)


def _reduction_mounts(plan: LaunchPlan, lost_reducers: Path | None) -> list[tuple[str, str, bool]]:
    """Return the mounts of a replica that uses reducers: (source, target, read-only); in an image, where the
    plan puts them."""
    if lost_reducers is None:
        return []
    if not _is_shown(plan.software.image):
        return [(str(lost_reducers), str(lost_reducers), True)]
    return [
        (plan.reduction.packages, REDUCTION_PACKAGES, True),
        (str(lost_reducers), LOST_REDUCERS, True),
    ]


def _environ(
    plan: LaunchPlan,
    slot: Slot,
    host: HostFacts,
    shared: SharedPaths,
    *,
    edits: DeviceEdits,
    files: Path,
    lost_reducers: Path | None,
) -> dict[str, str]:
    host_of_endpoint, port_of_endpoint = endpoint_address(slot)
    endpoint = f"{host_of_endpoint}:{port_of_endpoint}"
    given = environs.ambient(shared.ambient or {})
    ours = ["localhost", "127.0.0.1", host_of_endpoint, slot.address]
    if shared.access.storage_socket:
        given |= environs.storage(endpoint)
    if names := intercepted(host, shared):
        ours += names
        given |= environs.trust()
    elif shared.access.rest_url and not host.namespaced:
        given |= environs.gcloud(shared.access.rest_url)
    if lost_reducers is not None:
        given |= environs.reducer_threads(plan, host.processors)
    environ = (
        given
        | environs.past_proxies(given, ours)
        | dict(plan.environ)
        | environs.of_slot(plan, slot, files, namespaced=host.namespaced)
        | (environs.lost_reducers(plan, str(lost_reducers)) if lost_reducers else {})
        | edits.environ
    )
    for name, parts in (
        ("LD_LIBRARY_PATH", (*edits.library_path, environ.get("LD_LIBRARY_PATH", ""))),
        ("PATH", (environ["PATH"], *edits.path)),
    ):
        if joined := ":".join(filter(None, parts)):
            environ[name] = joined
    return environ


def endpoint_address(slot: Slot) -> tuple[str, int]:
    """Return where the replica's own endpoint listens: always on the loopback, even if other machines reach
    the replica."""
    if slot.endpoint:
        return slot.endpoint, PROGRAM_PORT + 1
    return slot.address, slot.port + 1


def hosts_text(
    gang: Sequence[Slot], hosts: Sequence[tuple[str, str]], intercepted: Sequence[str] = ()
) -> str:
    """Return the gang's hosts file: the (name, address) pairs of `hosts`, the gang's slots that are not among
    them, and the names of Google's hosts that are `intercepted`."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    named = dict(hosts) | {slot.hostname: slot.address for slot in gang}
    named |= dict.fromkeys(intercepted, socket_calls.GOOGLE)
    # One name per line: some resolvers ignore long lines.
    lines += [f"{address}\t{name}" for name, address in named.items()]
    return "\n".join(lines) + "\n"


def outermost(directories: Iterable[Path | str]) -> tuple[str, ...]:
    """Return those directories that do not lie in another of them."""
    found: list[str] = []
    # Sorted so that those inside a directory follow it directly.
    for path in sorted({f"{directory}".rstrip("/") + "/" for directory in directories}):
        if not found or not path.startswith(found[-1]):
            found.append(path)
    return tuple(path.rstrip("/") or "/" for path in found)
