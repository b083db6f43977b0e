"""From a launch plan and a slot to the document that a shim starts a program by. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainshed.core.environment import METRIC_FILE
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Slot
from trainshed.replica import program, protocol, reports

SANE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PASSED_ON = frozenset(
    {
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_NO_INDEX",
        "PIP_TRUSTED_HOST",
        "PIP_CERT",
        "PIP_CONFIG_FILE",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
        "TZ",
    }
)
"""All that a program gets of the service's own environment: how to reach the outside, never a secret of ours."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the engine found out about this machine.

    `level`: sandbox level (`protocol.LEVEL_*`). `memory_base`, `cpu_base`: control group directories ("" = none).
    `memory_bytes`: what all replicas share. `identity`: tells this service from others on the machine.
    `gpus`: it has some, so that each replica is told which are its own.
    """

    level: str
    memory_base: str
    cpu_base: str
    memory_bytes: int
    identity: str
    gpus: bool = False

    @property
    def namespaced(self) -> bool:
        return self.level != protocol.LEVEL_SESSION


def launch_document(
    *,
    plan: LaunchPlan,
    slot: Slot,
    host: Host,
    directory: Path,
    hosts: Path,
    logs: Path,
    hidden: tuple[str, ...],
    read_only: tuple[Path, ...],
    storage_socket: str,
    ambient: Mapping[str, str],
) -> protocol.LaunchDocument:
    """Put the document together. `directory`: the slot's; `hosts`: the gang's hosts file; `logs`: the replica's;
    `ambient`: the service's own environment, of which only an allowed list is passed on."""
    limit = min(plan.memory_limit, host.memory_bytes) if plan.memory_limit else 0
    storage_port = slot.port + 1
    endpoint = f"http://{slot.address}:{storage_port}"
    storage = _storage_environment(endpoint) if storage_socket else {}
    return protocol.LaunchDocument(
        incarnation=plan.incarnation,
        argv=list(plan.argv),
        environ=_ambient(ambient)
        | storage
        | dict(plan.environ)
        | _slot_environment(plan, slot, host, directory / protocol.FILES)
        | _device_environment(slot, host),
        logs=str(logs),
        hostname=slot.hostname if host.namespaced else "",
        hosts=str(hosts),
        address=slot.address,
        banner=plan.banner,
        level=host.level,
        python_template="" if host.namespaced else plan.python_template,
        memory_limit=limit,
        memory_base=host.memory_base,
        cpu_weight=plan.cpu_weight,
        cpu_base=host.cpu_base,
        cgroup_name=f"trainshed-{host.identity}-{plan.job_uid}-{plan.attempt}-{plan.replica}",
        gcs_root=plan.gcs_root,
        hidden=hidden,
        read_only=outermost([*read_only, *map(Path, _read_only(plan, host))]),
        storage_socket=storage_socket,
        storage_port=storage_port,
        stall_after=plan.stall_after / 1e9,
        memory_polling=not host.memory_base,
        watch_metrics=plan.watch_metrics,
    )


def _read_only(plan: LaunchPlan, host: Host) -> tuple[str, ...]:
    """What of the plan a program may only read: its Python as well, if it does not get a copy."""
    template = (plan.python_template,) if host.namespaced and plan.python_template else ()
    return (*plan.read_only, *template)


def hosts_text(gang: Sequence[Slot], hosts: Sequence[tuple[str, str]]) -> str:
    """The gang's hosts file: the (name, address) of `hosts`, and whatever slot of the gang is not among them."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    named = dict(hosts) | {slot.hostname: slot.address for slot in gang}
    lines += [f"{address}\t{name}" for name, address in named.items()]
    return "\n".join(lines) + "\n"


def _storage_environment(endpoint: str) -> dict[str, str]:
    """What points the clients of gs:// at the replica's own endpoint, which adds the job's identity
    (SPEC §3, CLIENTS §3.11). The job may say otherwise."""
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        # Otherwise gcsfs asks another service about each bucket, by a channel that nobody serves.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{endpoint}/storage/v1/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
    }


def _ambient(ambient: Mapping[str, str]) -> dict[str, str]:
    passed_on = {name: value for name, value in ambient.items() if name in _PASSED_ON}
    return {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"} | passed_on


def _slot_environment(plan: LaunchPlan, slot: Slot, host: Host, files: Path) -> dict[str, str]:
    """What only the slot knows; wins over the plan's own."""
    asked = dict(plan.environ)
    # Where mounts can protect it the template itself is used; what a program installs goes to the user base.
    template = Path(plan.python_template) if host.namespaced else files / program.PYTHON
    own = [files / program.PYTHON_USER] + [template] * bool(plan.python_template)
    path = [*(f"{place}/bin" for place in own), *plan.path, asked.get("PATH", SANE_PATH)]
    # A short name where there is a private /tmp: sockets in it have room for about 100 characters.
    private = host.namespaced and not program.lies_in_tmp(str(files))
    environ = {
        "HOME": str(files),
        "TMPDIR": "/tmp" if private else str(files / program.TEMPORARY),
        "PATH": ":".join(path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUSERBASE": str(files / program.PYTHON_USER),
        "HOSTNAME": slot.hostname,
    }
    if not host.namespaced and METRIC_FILE in asked:
        # /var/hypertune cannot be shown to one replica alone here.
        environ[METRIC_FILE] = str(files / program.HYPERTUNE / reports.FILE)
    return environ


def _device_environment(slot: Slot, host: Host) -> dict[str, str]:
    """Which GPUs a program sees: the replica's own, none where it has none (SPEC §2, Capacity modes; §3)."""
    if slot.devices is None and not host.gpus:
        return {}
    seen = slot.devices or ""
    environ = {"CUDA_VISIBLE_DEVICES": seen, "NVIDIA_VISIBLE_DEVICES": seen}
    # Ours are numbered so; CUDA's own order would begin with the fastest.
    return environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if seen else environ


def outermost(directories: Sequence[Path]) -> tuple[str, ...]:
    """Each directory that does not lie in another of them."""
    places = sorted(set(directories))
    return tuple(str(path) for path in places if not any(other in path.parents for other in places))
