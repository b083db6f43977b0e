"""Turns a launch plan and a slot into the document by which a shim starts a program. Pure, except for the
lookup of secrets."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.launch import REDUCTION_PACKAGES, LaunchPlan
from trainshed.core.secrets import SecretRef, named_in, resolved
from trainshed.engines.launch import environs
from trainshed.engines.launch.devices import DeviceEdits, device_edits
from trainshed.engines.launch.where import PROGRAM_PORT, HostFacts, SharedPaths, Where
from trainshed.engines.port import LaunchRejected, SecretSource, Slot
from trainshed.replica import protocol
from trainshed.replica.sandbox import socket_calls, users
from trainshed.replica.system import cgroups

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
    plan: LaunchPlan,
    where: Where,
    *,
    masked: tuple[str, ...] = (),
    beginning: Callable[[LaunchPlan, HostFacts, Mapping[str, str]], protocol.WarmStart]
    | None = None,
) -> protocol.LaunchDocument:
    """Compose the document. `masked`: texts that must not get into the log. `beginning`: decides whether a
    program with that environment begins warm; None = none does."""
    slot, host, shared, image = where.slot, where.host, where.shared, plan.software.image
    edits = device_edits(
        slot.devices,
        host.gpus,
        host.driver,
        private=host.namespaced,
        image=image is not None and bool(image.directory),
    )
    environ = environs.of_program(plan, where, edits)
    return protocol.LaunchDocument(
        incarnation=plan.incarnation,
        program=protocol.Program(
            argv=plan.argv,
            environ=environ,
            directory=(image.workdir or "/") if image else None,
            python_template=None if host.namespaced else plan.software.template,
        ),
        isolation=_isolation(plan, where, edits),
        limits=_limits(plan, host, shared),
        network=protocol.Network(
            address=slot.endpoint or slot.address,
            # Where replicas share the machine's address each has its own port, so that binding to the
            # wildcard address is harmless.
            cluster_port=None if slot.endpoint else PROGRAM_PORT,
            kept_ports=shared.kept_ports,
            storage_port=where.endpoint[1],
            storage_socket=_text(shared.access.storage_socket),
            identity=identity(plan),
            rest_socket=_text(shared.access.rest_socket),
            grpc_socket=_text(shared.access.grpc_socket),
            certificate=_text(shared.access.certificate) if where.intercepted else None,
        ),
        observation=protocol.Observation(
            logs=str(where.logs),
            masked=masked,
            usage_every=shared.usage_every,
            gpus=edits.gpus,
            watch_metrics=plan.watch_metrics,
            reducers=plan.reduction.reducers,
            reducers_expected=plan.reduction.is_expected,
        ),
        warm=beginning(plan, host, environ) if beginning is not None else protocol.WarmStart(),
    )


def _isolation(plan: LaunchPlan, where: Where, edits: DeviceEdits) -> protocol.Isolation:
    slot, host, shared = where.slot, where.host, where.shared
    software, image = plan.software, plan.software.image
    mounts = [(path, path, True) for path in shared.rules.visible]
    if plan.reduction.packages and image is not None and image.directory:
        mounts.append((plan.reduction.packages, REDUCTION_PACKAGES, True))
    mounts += edits.mounts
    template = (software.template,) if host.namespaced and software.template else ()
    return protocol.Isolation(
        level=host.level,
        hostname=slot.hostname if host.namespaced else None,
        hosts=str(where.hosts),
        users=(slot.users, users.COUNT) if slot.users else (),
        hidden=(*map(str, shared.hidden), *CLOSED),
        covered=COVERED,
        read_only=tuple(sorted({*map(str, shared.read_only), *software.read_only, *template})),
        mounts=tuple(mounts),
        devices=edits.devices,
        buckets=plan.buckets if host.namespaced else (),
        image=image.directory if image else None,
        image_user=image.user if image else None,
        roots=_text(shared.access.trust) if where.intercepted else None,
        shm_bytes=_memory(plan, host),
    )


def _limits(plan: LaunchPlan, host: HostFacts, shared: SharedPaths) -> protocol.Limits:
    return protocol.Limits(
        memory_limit=_memory(plan, host),
        cpu_weight=plan.limits.cpu_weight,
        pids_limit=cgroups.bounded(shared.rules.max_processes, host.processes),
        disk_limit=plan.limits.disk,
        disk_enforced=shared.rules.enforce_disk,
        stall_after=plan.limits.stall_after / 1e9 if plan.limits.stall_after else None,
        bases=host.bases,
        cgroup_name=f"trainshed-{host.identity}-{plan.job_uid}-{plan.attempt}-{plan.replica}",
    )


def _memory(plan: LaunchPlan, host: HostFacts) -> int | None:
    """Return the memory limit in bytes. No replica gets more than the machine has."""
    return min(plan.limits.memory, host.memory_bytes) if plan.limits.memory else None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


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


def hosts_text(
    gang: Sequence[Slot], hosts: Sequence[tuple[str, str]], intercepted: Sequence[str] = ()
) -> str:
    """Return the gang's hosts file: the (name, address) pairs of `hosts`, the gang's slots that are not among
    them, and the names of Google's hosts that are `intercepted`."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    address_of = dict(hosts) | {slot.hostname: slot.address for slot in gang}
    address_of |= dict.fromkeys(intercepted, socket_calls.GOOGLE)
    # One name per line: some resolvers ignore long lines.
    lines += [f"{address}\t{name}" for name, address in address_of.items()]
    return "\n".join(lines) + "\n"
