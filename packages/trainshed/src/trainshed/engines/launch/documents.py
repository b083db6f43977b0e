"""Builds the launch document with which a shim starts a program. The inputs are a launch plan, the properties
of the machine (`HostFacts`), the settings for all its programs, and the slot of the program's replica (its
directory, address and devices). Pure, except for secrets."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.catalog import regions
from trainshed.core.cluster import WORKER_POOL
from trainshed.core.launch import METRIC_FILE, REDUCTION_PACKAGES, REDUCTION_REPORT_FILE, LaunchPlan
from trainshed.core.secrets import SecretRef, referenced_secrets, resolve
from trainshed.engines.launch.devices import NO_DRIVER, Device, DeviceEdits, Driver, device_edits
from trainshed.engines.port import NO_ACCESS, LaunchRejected, ProgramRules, SecretSource, ServiceAccess, Slot
from trainshed.replica import protocol
from trainshed.replica.observe import metrics, reduction_reports
from trainshed.replica.sandbox import socket_calls, users
from trainshed.replica.supervisor import program
from trainshed.replica.system import roots
from trainshed_reduction import variables as reduction

PROGRAM_PORT = 2222
"""Port that every replica may bind on its own address (facts/program#cluster_spec)."""

_METADATA = ("metadata.google.internal", "metadata")
"""Names of the metadata server. TensorFlow before 2.5 uses these names and reads no variable instead."""


class HostFacts(Struct, frozen=True):
    """The properties of this machine that the engine determined at its start."""

    #: Sandbox level (`protocol.LEVEL_*`).
    level: str
    #: Parent directories for control groups, by controller: memory, cpu, pids.
    bases: dict[str, str]
    #: Memory in bytes that all replicas share.
    memory_bytes: int
    #: Identifier that distinguishes this service from other services on the machine.
    identity: str
    #: All GPUs of the machine.
    gpus: tuple[Device, ...] = ()
    #: Maximum number of processes and threads of one program, regardless of the settings; None = unknown.
    processes: int | None = None
    #: Files of the GPUs' driver.
    driver: Driver = NO_DRIVER
    #: Number of processors that programs may use; None = unknown.
    processors: float | None = None

    @property
    def has_namespaces(self) -> bool:
        return self.level != protocol.LEVEL_SESSION

    def process_limit(self, chosen: int | None) -> int | None:
        """Return the limit of a program's processes: the lower of `chosen` and `processes`. If `chosen` is
        None, return None (no limit)."""
        return min(chosen, self.processes) if chosen and self.processes else chosen


class BuildPlace(Struct, frozen=True):
    """The part of this machine's file system that the service's own sandboxes see. These sandboxes install
    packages and render curves."""

    host: HostFacts
    #: Directories whose contents these sandboxes must not see.
    hidden: tuple[str, ...]
    #: Paths that remain readable inside hidden directories.
    visible: tuple[str, ...]


@runtime_checkable
class HasBuildPlace(Protocol):
    """Optional interface of an engine that provides the `BuildPlace` of its machine."""

    def build_place(self) -> BuildPlace:
        """Return the part of the machine's file system that the service's own sandboxes see. Raises
        EngineUnavailable before `start`."""
        ...


class SharedPaths(Struct, frozen=True):
    """The settings that are the same in all launch documents (the inputs of shims) of one engine."""

    #: Directories whose contents programs must not see.
    hidden: tuple[Path, ...] = ()
    #: Paths that programs may only read, visible even inside hidden directories.
    read_only: tuple[Path, ...] = ()
    access: ServiceAccess = NO_ACCESS
    #: The service's own environment.
    ambient: Mapping[str, str] | None = None
    rules: ProgramRules = ProgramRules()
    #: Interval in seconds between two measurements of a replica's resources.
    usage_every: float = 10.0
    #: Ports of the service. Programs can bind them only on their own address, even while the service is
    #: stopped.
    kept_ports: tuple[int, ...] = ()
    #: File with the time after which no program may run (`replica.supervisor.deadline`); None = no limit.
    deadline: Path | None = None


class Where(Struct, frozen=True):
    """The place where one program starts: its machine, its replica's slot (address, ports, devices, users)
    and directories."""

    host: HostFacts
    shared: SharedPaths
    slot: Slot
    #: The replica's directory.
    directory: Path
    #: The gang's hosts file.
    hosts: Path
    #: Directory of the replica's log.
    logs: Path

    @property
    def files(self) -> Path:
        return self.directory / protocol.FILES

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address of the replica's own endpoint. It is a loopback address, even if other machines reach the
        replica."""
        if self.slot.endpoint:
            return self.slot.endpoint, PROGRAM_PORT + 1
        return self.slot.address, self.slot.port + 1

    @property
    def intercepted_hosts(self) -> tuple[str, ...]:
        """Names of Google hosts that resolve to the replica's own endpoint."""
        return intercepted_hosts(self.host, self.shared)


def intercepted_hosts(host: HostFacts, shared: SharedPaths) -> tuple[str, ...]:
    """Return the names of Google hosts that resolve to the endpoints of replicas on this machine."""
    if not (host.has_namespaces and shared.access.certificate):
        return ()
    ours = tuple(regions.apis()) if shared.access.rest_socket else ()
    return (*regions.STORAGE, *_METADATA, *ours)


COVERED = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
)
"""Unix sockets of daemons that carry out the commands of every client, such as Docker. Programs must not
reach them."""

CLOSED = ("/run/munge",)
"""Directories that contain the socket of such a daemon. Through munge's socket, a program could authenticate
to Slurm as the agents' user. It could then run a step outside its limits, or cancel other users' allocations.
The whole directory is hidden, because a restarted daemon creates a new socket."""


Revealed = tuple[LaunchPlan, tuple[str, ...]]
"""A launch plan that contains its secrets, and the texts to mask in its program's log."""


async def reveal_secrets(plans: Sequence[LaunchPlan], secrets: SecretSource | None) -> list[Revealed]:
    """Put secrets into launch plans. Called just before the plans go to a shim, and nowhere else.

    Returns the plans in the same order, each with the texts to mask in its log. Plans without secrets are
    returned unchanged and without waiting. Raises the errors of `SecretSource.values`.
    """
    known: dict[tuple[str, frozenset[SecretRef]], Mapping[SecretRef, str]] = {}
    shown: list[Revealed] = []
    for plan in plans:
        refs = referenced_secrets(plan.argv, plan.environ)
        if not refs:
            shown.append((plan, ()))
            continue
        if secrets is None:
            raise LaunchRejected(
                "The job refers to secrets, but this engine cannot read secrets. Remove them from the job."
            )
        # Most replicas of a gang need the same secrets, so look up each set only once.
        key = (plan.account.project, refs)
        if key not in known:
            known[key] = await secrets.values(*key)
        argv, environ, masked = resolve(plan.argv, plan.environ, known[key])
        shown.append((replace(plan, argv=argv, environ=environ), masked))
    return shown


def launch_document(
    plan: LaunchPlan,
    where: Where,
    *,
    masked: tuple[str, ...] = (),
    warm_start: Callable[[LaunchPlan, HostFacts, Mapping[str, str]], protocol.WarmStart] | None = None,
) -> protocol.LaunchDocument:
    """Build the launch document, which is a shim's input for the start of a program. `masked`: texts to mask
    in the log. `warm_start`: function that returns the settings of a warm start for a program's environment;
    None = all programs start cold."""
    slot, host, shared, image = where.slot, where.host, where.shared, plan.software.image
    edits = DeviceEdits()
    if host.gpus or slot.devices is not None:
        edits = device_edits(
            slot.devices,
            host.gpus,
            host.driver,
            private=host.has_namespaces,
            image=image is not None and bool(image.directory),
        )
    environ = program_environment(plan, where, edits)
    return protocol.LaunchDocument(
        incarnation=plan.incarnation,
        program=protocol.Program(
            argv=plan.argv,
            environ=environ,
            directory=(image.workdir or "/") if image else None,
            python_template=plan.software.template,
        ),
        isolation=_isolation(plan, where, edits),
        limits=_limits(plan, host, shared),
        network=protocol.Network(
            address=slot.endpoint or slot.address,
            # Replicas that share the machine's address have different ports, so a bind to the wildcard
            # address is harmless and needs no redirection.
            cluster_port=None if slot.endpoint else PROGRAM_PORT,
            kept_ports=shared.kept_ports,
            master_port=_master_port(plan) if host.has_namespaces else None,
            is_primary=plan.replica.is_primary,
            storage_port=where.endpoint[1],
            storage_socket=_text(shared.access.storage_socket),
            identity=identity(plan),
            rest_socket=_text(shared.access.rest_socket),
            grpc_socket=_text(shared.access.grpc_socket),
            certificate=_text(shared.access.certificate) if where.intercepted_hosts else None,
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
        warm=warm_start(plan, host, environ) if warm_start and plan.warm else protocol.WarmStart(),
    )


def _master_port(plan: LaunchPlan) -> int | None:
    """Return the port of rank 0 of the job's processes. Returns None if the replica has no rank, or if the
    job sets MASTER_ADDR to another host than the primary."""
    environ, own = dict(plan.environ), {plan.hostname, plan.address}
    if plan.replica.pool > WORKER_POOL:
        return None
    others = {part for host in plan.hosts for part in host} - own
    port, places = environ.get("MASTER_PORT", ""), own if plan.replica.is_primary else others
    return int(port) if environ.get("MASTER_ADDR") in places and port.isdecimal() else None


def _isolation(plan: LaunchPlan, where: Where, edits: DeviceEdits) -> protocol.Isolation:
    slot, host, shared = where.slot, where.host, where.shared
    software, image = plan.software, plan.software.image
    mounts = [(path, path, True) for path in shared.rules.visible]
    if plan.reduction.packages and image is not None and image.directory:
        mounts.append((plan.reduction.packages, REDUCTION_PACKAGES, True))
    mounts += edits.mounts
    return protocol.Isolation(
        level=host.level,
        hostname=slot.hostname if host.has_namespaces else None,
        hosts=str(where.hosts),
        users=(slot.users, users.COUNT) if slot.users else (),
        hidden=(*map(str, shared.hidden), *CLOSED),
        covered=COVERED,
        read_only=tuple(sorted({*map(str, shared.read_only), *software.read_only})),
        mounts=tuple(mounts),
        devices=edits.devices,
        buckets=plan.buckets if host.has_namespaces else (),
        image=image.directory if image else None,
        image_user=image.user if image else None,
        roots=_text(shared.access.trust) if where.intercepted_hosts else None,
        shm_bytes=_memory(plan, host),
    )


def _limits(plan: LaunchPlan, host: HostFacts, shared: SharedPaths) -> protocol.Limits:
    return protocol.Limits(
        memory_limit=_memory(plan, host),
        cpu_weight=plan.limits.cpu_weight,
        pids_limit=host.process_limit(shared.rules.max_processes),
        disk_limit=plan.limits.disk,
        disk_enforced=shared.rules.enforce_disk,
        deadline=_text(shared.deadline),
        stall_after=plan.limits.stall_after / 1e9 if plan.limits.stall_after else None,
        bases=host.bases,
        cgroup_name=f"trainshed-{host.identity}-{plan.job_uid}-{plan.attempt}-{plan.replica}",
    )


def _memory(plan: LaunchPlan, host: HostFacts) -> int | None:
    """Return the memory limit in bytes, at most the machine's memory."""
    return min(plan.limits.memory, host.memory_bytes) if plan.limits.memory else None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def identity(plan: LaunchPlan) -> str:
    """Return the identity of a replica as JSON. The replica's endpoint sends it when it connects to the
    service."""
    return json.dumps(
        {
            "job_uid": str(plan.job_uid),
            "attempt": plan.attempt,
            "replica": str(plan.replica),
            "project": plan.account.project,
            "service_account": plan.account.service_account,
            "region": plan.account.region,
            "machine_type": plan.account.machine_type,
            "is_spot": plan.account.is_spot,
            "address": plan.address,
        }
    )


def hosts_text(
    gang: Sequence[Slot], hosts: Sequence[tuple[str, str]], intercepted: Sequence[str] = ()
) -> str:
    """Return the text of the gang's hosts file. It contains the (name, address) pairs of `hosts`, those of
    all other replicas of the gang, and the `intercepted` names of Google hosts."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    address_of = dict(hosts) | {slot.hostname: slot.address for slot in gang}
    address_of |= dict.fromkeys(intercepted, socket_calls.GOOGLE)
    # Write one name per line, because some resolvers ignore long lines.
    lines += [f"{address}\t{name}" for name, address in address_of.items()]
    return "\n".join(lines) + "\n"


SANE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PLACES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_FIND_LINKS",
    "UV_FIND_LINKS",
)
"""Variables of the service's own environment that contain paths."""
_INHERITED_NAMES = frozenset(
    {
        *_PLACES,
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
        "PIP_TRUSTED_HOST",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_NO_INDEX",
        "TZ",
    }
)
"""Variables that programs inherit from the service's environment. They configure access to networks and never
contain a secret."""


def inherited_paths(ours: Mapping[str, str]) -> tuple[str, ...]:
    """Return the absolute paths in the inherited variables. Programs need the files at the same paths as the
    service."""
    parts = (part for name in _PLACES for part in ours.get(name, "").replace(",", " ").split())
    return tuple(dict.fromkeys(part for part in parts if part.startswith("/")))


def program_environment(plan: LaunchPlan, where: Where, edits: DeviceEdits) -> dict[str, str]:
    """Return all environment variables of a program. No other code sets them. `edits`: the changes for the
    program's GPUs.

    These are the sources. A later source overrides an earlier one, unless noted:

    - the service's own environment (`_inherited_variables`): LANG LC_ALL TZ *_PROXY *_proxy SSL_CERT_*
      REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_* UV_*
    - the replica's endpoint (`_storage_variables`): STORAGE_EMULATOR_HOST GCE_METADATA_*
      METADATA_SERVER_DETECTION GCSFS_* CLOUDSDK_API_ENDPOINT_OVERRIDES_*
    - the interception of Google's hosts (`_trust_variables`): CURL_CA_BUNDLE SSL_CERT_FILE REQUESTS_CA_BUNDLE
      HTTPLIB2_CA_CERTS GRPC_DEFAULT_SSL_ROOTS_FILE_PATH CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE
      NODE_EXTRA_CA_CERTS
    - the machine's processors (`_reducer_variables`): TRAINSHED_REDUCTION_THREADS
    - an inherited proxy, with the replica's own hosts (`_proxy_exceptions`): NO_PROXY no_proxy
    - the author of a container image (`core.environment`): any
    - the job, as on the public services (`core.environment`): CLOUD_ML_* GOOGLE_CLOUD_PROJECT AIP_*
      CUDA_VISIBLE_DEVICES PYTHONUNBUFFERED, and those of its framework's older version (`old_ways`)
    - the gang (`core.environment`): CLUSTER_SPEC TF_CONFIG MASTER_ADDR MASTER_PORT RANK WORLD_SIZE
      NODE_RANK NNODES JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID
    - the job's `env` (`core.environment`): any
    - the metrics file and reducers (`core.environment`): CLOUD_ML_HP_METRIC_FILE TRAINSHED_REDUCTION*
      PYTHONPATH
    - the slot (`_slot_variables`): HOME TMPDIR PATH PYTHONUSERBASE VIRTUAL_ENV PYTHONUNBUFFERED HOSTNAME.
      The job's own HOME, TMPDIR and PYTHONUNBUFFERED override them, and its PATH is appended
    - the slot's GPUs (`driver`): CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES
      LD_LIBRARY_PATH
    - the stall watchdog, unless the job sets it (`replica.supervisor.main_process`): PYTHONFAULTHANDLER
    """
    slot, host, access = where.slot, where.host, where.shared.access
    own_address, own_port = where.endpoint
    variables = _inherited_variables(where.shared.ambient or {})
    ours = ["localhost", "127.0.0.1", own_address, slot.address]
    if access.storage_socket:
        variables |= _storage_variables(f"{own_address}:{own_port}")
    if names := where.intercepted_hosts:
        ours += names
        variables |= _trust_variables()
    if plan.reduction.packages:
        variables |= _reducer_variables(plan, host.processors)
    variables |= _proxy_exceptions(variables, ours)
    variables |= dict(plan.environ)
    variables |= _slot_variables(plan, slot, where.files, namespaced=host.has_namespaces)
    variables |= edits.environ
    for name, parts in (
        ("LD_LIBRARY_PATH", (*edits.library_path, variables.get("LD_LIBRARY_PATH", ""))),
        ("PATH", (variables["PATH"], *edits.path)),
    ):
        if joined := ":".join(filter(None, parts)):
            variables[name] = joined
    return variables


def _inherited_variables(ours: Mapping[str, str]) -> dict[str, str]:
    passed_on = {name: value for name, value in ours.items() if name in _INHERITED_NAMES}
    return {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"} | passed_on


def _storage_variables(place: str) -> dict[str, str]:
    """Return the variables that direct the clients of gs:// to the replica's own endpoint, which adds the
    job's identity (spec/program#storage, spec/clients#inside-jobs). Values of the job take precedence.
    `place`: ADDRESS:PORT."""
    endpoint = f"http://{place}"
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        # Without this variable, gcsfs calls the Storage Control service over gRPC for each bucket. Trainshed
        # does not have that service.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{endpoint}/storage/v1/",
        # The endpoint provides Application Default Credentials: it acts as the metadata server of a machine
        # with the job's service account.
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_IP": place,
        "GCE_METADATA_ROOT": place,
        "METADATA_SERVER_DETECTION": "assume-present",
    }


def _trust_variables() -> dict[str, str]:
    """Return the variables that set the trusted authorities of clients with their own root certificates
    (Python's, gRPC's, gcloud's, Node's). All other clients read the same file at its usual path."""
    return dict.fromkeys(
        (
            "CURL_CA_BUNDLE",
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "HTTPLIB2_CA_CERTS",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
            "NODE_EXTRA_CA_CERTS",
        ),
        roots.PLACE,
    )


def _proxy_exceptions(ours: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return NO_PROXY with `hosts` added, if programs inherit a proxy. A proxy cannot reach the replica's
    endpoint."""
    if not any(name.lower() in ("http_proxy", "https_proxy") for name in ours):
        return {}
    without = ours.get("no_proxy") or ours.get("NO_PROXY") or ""
    text = ",".join([*filter(None, without.split(",")), *hosts])
    return {"NO_PROXY": text, "no_proxy": text}


def _reducer_variables(plan: LaunchPlan, processors: float | None) -> dict[str, str]:
    """Return the variable with the number of threads of a reducer: one per vCPU, at most the machine's
    `processors` (None = unknown). Returns no variable for other replicas."""
    if reduction.LISTEN not in dict(plan.environ):
        return {}
    vcpus = min((plan.limits.cpu_weight or 0) / 100, reduction.MAX_THREADS)
    return {reduction.THREADS: str(max(1, int(min(vcpus, processors or vcpus))))}


def _slot_variables(plan: LaunchPlan, slot: Slot, files: Path, *, namespaced: bool) -> dict[str, str]:
    """Return the variables whose values depend on the replica's directory, address and devices (its slot).
    They override the plan's variables, except for those that the job may set."""
    chosen = dict(plan.environ)
    environ: dict[str, str] = {} if namespaced else _report_variables(files, chosen)
    environ |= {"PYTHONUNBUFFERED": chosen.get("PYTHONUNBUFFERED", "1"), "HOSTNAME": slot.hostname}
    if plan.software.image is not None:
        # The image sets all other variables itself.
        return environ | {"PATH": chosen.get("PATH", SANE_PATH)}
    # The program's own copy of the template is first on its paths. So it installs packages there, and no
    # other program sees them. Mounts show the copy at the template's path.
    home, copy = str(files), f"{files}/{program.PYTHON}"
    python = plan.software.template or copy if namespaced else copy
    path = [f"{python}/bin", *plan.software.path, chosen.get("PATH", SANE_PATH)]
    # A private /tmp keeps paths short: paths of Unix sockets are limited to about 100 characters.
    if plan.software.template:
        environ["VIRTUAL_ENV"] = python  # `uv pip` installs into this environment.
    return environ | {
        "HOME": chosen.get("HOME", home),
        "TMPDIR": chosen.get("TMPDIR", "/tmp" if namespaced else f"{files}/{program.TEMPORARY}"),
        "PATH": ":".join(path),
        # `pip --user` also installs there. Any other directory would have to exist before Python starts.
        "PYTHONUSERBASE": python,
    }


def _report_variables(files: Path, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for cloudml-hypertune's files, used if /var/hypertune cannot be mounted."""
    own = {METRIC_FILE: metrics.PROGRAM_FILE, REDUCTION_REPORT_FILE: reduction_reports.PROGRAM_FILE}
    return {name: str(files / program.HYPERTUNE / own[name]) for name in own.keys() & chosen.keys()}
