"""Settings: defaults, then a TOML file, then the environment, then the command line; later wins."""

import ipaddress
import os
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainshed.buckets.rules import BucketTable
from trainshed.serve.setting_rules import convert, near

if TYPE_CHECKING:
    from trainshed.runtimes.image_map import MappedImage


class SettingsError(Exception):
    """A setting that cannot be used. The message names the setting, its source and what is allowed."""


def default_data() -> Path:
    """Where a service keeps everything it must not lose: $TRAINSHED_DATA or ~/.trainshed."""
    return Path(os.environ.get("TRAINSHED_DATA") or Path.home() / ".trainshed")


def default_cache() -> Path:
    """Where runtimes are built, shared by all services of a user: $TRAINSHED_CACHE or ~/.cache/trainshed."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainshed"
    return Path(os.environ.get("TRAINSHED_CACHE") or fallback)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a service. The same names are the keys of the TOML file and, upper-cased behind
    TRAINSHED_, environment variables; docs/settings.md lists them for people.

    `grace`: seconds between SIGTERM and SIGKILL of a replica. `default_bucket`: made at the first start, for
    the demo and for staging. `nodes`: virtual nodes of the local engine. `max_replicas`: how many replicas run at once; further jobs wait.
    `memory_per_replica`: MiB that one replica gets at most, whatever its machine type has; 0 = what the
    machine type has. `exact_runtimes`: refuse a runtime substitution instead of noting it (SPEC §4).
    `capacity`: relaxed or strict (SPEC §2); `quotas`: unlimited or public, where none is set. `node_cpus`,
    `node_memory` (GiB), `node_accelerators` (TYPE=COUNT,…): what each node is said to have; 0 and "" = its share of
    the machine. `patience`: seconds for which a waiting job may be overtaken. `lease`: seconds after which a shim or
    node that does not answer counts as gone. `max_attempts`: of one job. `stall_after`: seconds without progress
    after which a program is ended, 0 = never. `error_delay`: seconds after a job's end before the public APIs tell
    its error. `reduction_tls`: reducers speak TLS, whether or not a job asks for it. `grpc`: whether there is gRPC; its ports, 0 = beside the REST port.
    `shared_buckets`: open to the programs of all projects, with commas in between; `anonymous_storage`: the storage
    port asks nobody who he is; `buckets`: tables of buckets that lie elsewhere, or belong to other projects.
    `web_url`: where browsers reach this service, "" = where it listens. `allowed_hosts`: further names by which it may be
    called, `allowed_origins`: pages of others that may call it, each with commas in between. `shell`: on or off, whether there are shells in
    replicas; `shell_idle`: seconds without a byte after which one is hung up, 0 = never. `autopsy_ttl`: hours for which what a
    failed replica left is kept, 0 = not at all; `autopsy_limit`: GiB of all that is kept.
    `tls`: all ports speak TLS, plain HTTP is for this machine; `insecure`: they do not, though others reach them. `tls_cert`,
    `tls_key`: PEM files that the service shows, both or none; with them all ports speak TLS. `failure_rules`: tables that change the failure table (SPEC §2.1).
    `isolation`: the level that is demanded, "" = the strongest that works here; `visible_paths`: what programs may read
    of what is hidden from them otherwise, with colons in between; `max_processes`: of one replica, 0 = any number;
    `build_memory` (MiB), `build_disk` (GiB), `build_time` (seconds): what one installation of a job's packages may take;
    memory 0 = as one replica, 8 GiB if that is not said either; the others 0 = any.
    `usage_every`: seconds between two looks at what a replica uses, 0 = nobody looks. `enforce_disk`: a replica whose
    files take more than the disk that its job asked for is ended.
    `container_tool`: what gets container images; `image_pull`: when their registries are asked.
    `images`: tables that map images to runtimes or to other images, the first that fits wins (SPEC §4).
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc: bool = True
    grpc_port: int = 0
    grpc_tls_port: int = 0
    tls: bool = False
    insecure: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    data: Path = Path()
    cache: Path = Path()
    engine: str = "local"
    database: str = "sqlite"
    nodes: int = 1
    project: str = "trainshed"
    region: str = "us-central1"
    default_bucket: str = "trainshed"
    shared_buckets: str = ""
    anonymous_storage: bool = False
    max_replicas: int = 256
    grace: float = 30.0
    memory_per_replica: int = 0
    exact_runtimes: bool = False
    capacity: str = "relaxed"
    quotas: str = "unlimited"
    node_cpus: float = 0.0
    node_memory: float = 0.0
    node_accelerators: str = ""
    patience: float = 600.0
    lease: float = 30.0
    max_attempts: int = 10
    stall_after: float = 0.0
    error_delay: float = 0.0
    reduction_tls: bool = False
    tuning_engine: str = "gp-bandit"
    max_study_trials: int = 1000
    web_url: str = ""
    allowed_hosts: str = ""
    allowed_origins: str = ""
    isolation: str = ""
    visible_paths: str = ""
    max_processes: int = 32768
    usage_every: float = 10.0
    enforce_disk: bool = False
    build_memory: int = 0
    build_disk: float = 32.0
    build_time: float = 1800.0
    shell: str = "on"
    shell_idle: float = 1800.0
    autopsy_ttl: float = 24.0
    autopsy_limit: float = 10.0
    failure_rules: tuple[dict[str, Any], ...] = ()
    container_tool: str = "auto"
    image_pull: str = "missing"
    images: "tuple[MappedImage, ...]" = ()
    buckets: tuple[BucketTable, ...] = ()


def load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    """The settings in force. `overrides` are the command line's; None there means "not given".

    Raises SettingsError for unknown keys and values of the wrong type, naming all of them.
    """
    known = {field.name for field in fields(Settings)}
    wrong: list[str] = []
    values: dict[str, tuple[Any, str]] = {}
    if config is not None:
        document = _read(config)
        values.update({key: (value, f"{config}: {key}") for key, value in document.items()})
        wrong += [
            f"{config}: unknown setting {key!r}.{near(key, known) or ' docs/settings.md lists all.'}"
            for key in document
            if key not in known
        ]
    # The first two have variables that are the defaults' own; tables stand in files only.
    for name in known - {"data", "cache", "failure_rules", "buckets", "images"}:
        variable = f"TRAINSHED_{name.upper()}"
        if (text := os.environ.get(variable)) is not None:
            values[name] = (text, variable)
    for name, value in overrides.items():
        if value is not None:
            values[name] = (value, f"--{name.replace('_', '-')}")
    converted: dict[str, Any] = {}
    for name, (value, source) in values.items():
        if name in known:
            try:
                converted[name] = convert(name, _KINDS[name], value)
            except ValueError as failure:
                wrong += [_told(source, name, line) for line in str(failure).splitlines()]
    wrong += _halves(values)
    if wrong:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(sorted(wrong)))
    settings = replace(Settings(data=default_data(), cache=default_cache()), **converted)
    if cause := exposed(settings):
        raise SettingsError(cause)
    return replace(
        settings,
        data=settings.data.absolute(),
        cache=settings.cache.absolute(),
        tls_cert=_absolute(settings.tls_cert),
        tls_key=_absolute(settings.tls_key),
    )


def speaks_tls(settings: Settings) -> bool:
    """Whether REST and storage speak TLS, as gRPC does in any case."""
    return settings.tls or bool(settings.tls_cert)


def exposed(settings: Settings) -> str:
    """Why a service would be open to whoever listens on the network, "" if it is not."""
    if is_loopback(settings.host) or speaks_tls(settings) or settings.insecure:
        return ""
    host = settings.host or "0.0.0.0"
    up = f"trainshed up --host {host}"
    return (
        f"--host {host}: others would reach the service there, and tokens and what is typed into shells would "
        "go over the network as they are. Choose one:\n"
        f"  {up} --tls                                      TLS, by an authority of the service's own\n"
        f"  {up} --tls-cert cert.pem --tls-key key.pem      TLS, by a certificate of yours\n"
        f"  {up} --insecure                                 plain HTTP: behind a proxy that speaks TLS"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _absolute(file: str) -> str:
    return str(Path(file).expanduser().absolute()) if file else ""


def _halves(values: dict[str, tuple[Any, str]]) -> list[str]:
    """What is wrong where a certificate has no key, or a key no certificate."""
    found = {name: values[name][1] for name in ("tls_cert", "tls_key") if _given(name, values)}
    if len(found) != 1:
        return []
    ((name, source),) = found.items()
    other = "tls_key" if name == "tls_cert" else "tls_cert"
    return [f"{source}: given without {other}; give both, or neither"]


def _given(name: str, values: dict[str, tuple[Any, str]]) -> bool:
    return name in values and values[name][0] != ""


def _told(source: str, name: str, line: str) -> str:
    """What is wrong behind its source; a line that names the setting's own parts does not name it twice."""
    named = line.startswith((f"{name} ", f"{name}["))
    return f"{source.removesuffix(f': {name}') if named else source}: {line}"


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as failure:
        cause = f"{failure.strerror}; give the path of a TOML file"
    except ValueError as failure:
        cause = str(failure)
    raise SettingsError(f"The configuration {config} cannot be read: {cause}")


_KINDS: dict[str, type[Any]] = {
    field.name: type(cast("object", getattr(Settings(), field.name))) for field in fields(Settings)
}
