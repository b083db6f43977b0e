"""Reads settings from defaults, a TOML file, the environment and the command line. Each source overrides the
previous ones."""

import os
import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, cast

import click
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.cli.connection import data_directory
from trainshed.core.errors import closest
from trainshed.core.warm_start import WarmStarts
from trainshed.httpd.hosts import is_loopback
from trainshed.serve.setting_types import (
    Age,
    Amount,
    BucketTables,
    Capacity,
    ContainerTool,
    Count,
    Days,
    Directories,
    Engine,
    FailureRules,
    HostNames,
    Isolation,
    IssuerTables,
    MailServer,
    MappedImages,
    NodeAccelerators,
    NotifyTables,
    Port,
    Positive,
    PriceList,
    Project,
    Region,
    Size,
    WebUrl,
    accelerators_of,
    convert,
)
from trainshed.telemetry.lines import LogFormat, LogLevel


class SettingsError(click.ClickException):
    """A setting is invalid. The message contains the setting, its source and the allowed values."""


_DISTANCES = {"the port of buckets": 1, "grpc_port": 2, "grpc_tls_port": 3, "the TLS port of buckets": 4}
"""Offset of each port from the REST port, unless a setting specifies the port."""


def default_cache() -> Path:
    """Return the directory of built runtimes, $TRAINSHED_CACHE or ~/.cache/trainshed. All services of a user
    share it."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainshed"
    return Path(os.environ.get("TRAINSHED_CACHE") or fallback).expanduser()


class Settings(Struct, frozen=True):
    """All settings of a service. Their types specify the allowed values.

    The name of a field is the key in the TOML file. The name of the environment variable is TRAINSHED_ and
    the key in upper case. docs/settings.md describes the settings for users.
    """

    #: Address to listen on.
    host: str = "127.0.0.1"
    #: Port of the REST APIs; 0 = any free port.
    port: Port = 8080
    #: Ports of gRPC without TLS and with TLS; 0 = the REST port + 2 and the REST port + 3.
    grpc_port: Port = 0
    grpc_tls_port: Port = 0
    #: Use TLS on all ports. Only clients on this machine may use plain HTTP.
    tls: bool = False
    #: Allow plain HTTP from other machines, behind a proxy that terminates TLS.
    insecure: bool = False
    #: PEM files of the certificate and its key. Specify both or neither. They enable TLS on all ports.
    tls_cert: str | None = None
    tls_key: str | None = None
    #: Directory of all data that must not be lost.
    data: Path = Path()
    #: Directory of built runtimes, shared by all services of a user.
    cache: Path = Path()
    #: Maximum size of the cache, in the form of `setting_types.parse_size`; None = unlimited.
    cache_size: Size | None = None
    #: Engine that runs replicas.
    engine: Engine = "local"
    #: Virtual nodes of the local engine.
    nodes: Positive = 1
    #: Default project and region of clients.
    project: Project = "trainshed"
    region: Region = "us-central1"
    #: Maximum number of running replicas. Other jobs wait.
    max_replicas: Positive = 256
    #: Seconds between SIGTERM and SIGKILL of a replica.
    grace: Amount = 30.0
    #: Memory limit in MiB of one replica; 0 = the memory of its machine type.
    memory_per_replica: Count = 0
    #: Reject jobs whose exact runtime is not available (spec/runtimes#substitutes).
    exact_runtimes: bool = False
    #: Whether jobs wait for the capacity of nodes (spec/queue#quotas); None = strict for clusters, relaxed
    #: for this machine.
    capacity: Capacity | None = None
    #: CPUs, memory in GiB and accelerators (TYPE=COUNT,…) of each node; 0 and "" = an equal share of the
    #: machine.
    node_cpus: Amount = 0.0
    node_memory: Amount = 0.0
    node_accelerators: NodeAccelerators = ""
    #: Days after which past usage counts half in the fair share.
    half_life: Days = 7.0
    #: Maximum number of unfinished jobs that one job may create, including jobs created by those jobs; 0 =
    #: none.
    max_child_jobs: Count = 20
    #: Which programs start warm, with their frameworks already imported. A label of the job takes precedence.
    warm_starts: WarmStarts = "trials"
    #: Address of the service for browsers; None = the address to listen on.
    web_url: WebUrl | None = None
    #: Additional host names of the service, separated by commas.
    allowed_hosts: HostNames = ""
    #: Required isolation level; None = the strongest available level.
    isolation: Isolation | None = None
    #: Directories, separated by colons, that programs may read although they are hidden by default.
    visible_paths: Directories = ""
    #: Maximum processes and threads of one replica or package installation; 0 = no limit.
    max_processes: Count = 32_768
    #: Whether to stop replicas whose files exceed the disk size of the job.
    enforce_disk: bool = False
    #: Shells in replicas: on, or off for all jobs.
    shell: Literal["on", "off"] = "on"
    #: Hours to keep the files of failed replicas; 0 = keep none.
    autopsy_ttl: Amount = 24.0
    #: How long a job is kept after its end; None = forever.
    retention_jobs: Age | None = None
    #: Prices per hour of machine types and accelerator types: TYPE=AMOUNT,…. Types without a price are free.
    prices: PriceList = ""
    #: Mail server for `notify`, as smtp://USER@HOST:PORT/SENDER; None = mail is disabled.
    smtp: MailServer | None = None
    #: Seconds for which all GPUs of a job must be idle before its timeline shows a warning; 0 = no warning.
    idle_gpus: Amount = 0.0
    #: Seconds after the idle warning before a job that is still idle is stopped; 0 = never.
    idle_stop: Amount = 0.0
    #: Format of the service's log.
    log_format: LogFormat = "text"
    #: Minimum level of log lines; `info` includes every request.
    log_level: LogLevel = "warning"
    #: Tables that take precedence over the rows of the failure table (spec/failures#rules).
    failure_rules: FailureRules = ()
    #: Tool that pulls container images.
    container_tool: ContainerTool = "auto"
    #: Tables that map container images to runtimes or to other images. The first match wins
    #: (spec/runtimes#images).
    images: MappedImages = ()
    #: Tables of buckets that are in another store, belong to other projects, or are open to all callers.
    buckets: BucketTables = ()
    #: Tables of issuers for single sign-on.
    oidc: IssuerTables = ()
    #: Tables of notification targets.
    notify: NotifyTables = ()
    #: Tables of all engines except the local one, by name and unchanged. Each engine checks its own table.
    #: The settings of the local engine are listed in `LOCAL_ENGINE`.
    engines: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def strict(self) -> bool:
        bounded = self.engine in ("kubernetes", "slurm") and not self.has_cluster_queue
        return (self.capacity or ("strict" if bounded else "relaxed")) == "strict"

    @property
    def has_cluster_queue(self) -> bool:
        """Return whether the queue of a cluster assigns nodes to jobs. Otherwise, the service's own scheduler
        does."""
        return (self.engine, engine_settings(self).get("queue")) in _CLUSTER_QUEUES


_CLUSTER_QUEUES = {("slurm", "slurm"): "Slurm", ("kubernetes", "kueue"): "Kueue"}
"""The scheduler that assigns nodes instead of the service, by engine and the engine's setting `queue`."""
LOCAL_ENGINE = ("nodes", "node_cpus", "node_memory", "node_accelerators")
"""Settings of the local engine."""


def load(config: Path | None, overrides: dict[str, Any], *, to_serve: bool = False) -> Settings:
    """Return the effective settings.

    `overrides`: settings from the command line; None = not set. `to_serve`: whether to require the secrets of
    tables, which only the service's environment contains. Raises SettingsError that lists all unknown keys,
    invalid values and contradictory settings.
    """
    known = Settings.__annotations__
    wrong: list[str] = []
    values: dict[str, tuple[Any, str]] = {}
    if config is not None:
        document = _read(config)
        wrong += _engine_tables(config, document.get("engines", {}))
        values.update({key: (value, f"{config}: {key}") for key, value in document.items()})
        wrong += [
            f"{config}: unknown setting "
            f"{key!r}.{closest(key, known) or ' docs/settings.md lists all settings.'}"
            for key in document
            if key not in known
        ]
    # The defaults of `data` and `cache` read their environment variables.
    for name in known.keys() - {"data", "cache"}:
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
                converted[name] = convert(name, known[name], value)
            except ValueError as failure:
                wrong += [_with_source(source, name, line) for line in str(failure).splitlines()]
    settings = replace(Settings(data=data_directory(None), cache=default_cache()), **converted)
    missing = _missing_variables(settings) if to_serve else ()
    if wrong := wrong or [*_contradictions(settings), *missing]:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(sorted(wrong)))
    if cause := exposure(settings):
        raise SettingsError(cause)
    return replace(
        settings,
        # Resolve links, because a directory that is mounted over a link differs from the link's target.
        data=settings.data.resolve(),
        cache=settings.cache.resolve(),
        tls_cert=_absolute(settings.tls_cert),
        tls_key=_absolute(settings.tls_key),
    )


def engine_settings(settings: Settings) -> dict[str, Any]:
    if settings.engine != "local":
        return settings.engines.get(settings.engine, {})
    table = {name: getattr(settings, name) for name in LOCAL_ENGINE}
    return table | {"node_accelerators": accelerators_of(settings.node_accelerators)}


def _engine_tables(config: Path, value: Any) -> Iterator[str]:
    """Yield errors in the tables of engines, except for errors that only the engine itself can detect."""
    tables = cast("dict[str, Any]", value) if isinstance(value, dict) else {"NAME": value}
    for name, table in tables.items():
        if not isinstance(table, dict):
            yield f"{config}: the settings of an engine must be a table; write [engines.{name}]"
        elif name == "local":
            yield (
                f"{config}: engines.local is not a table; write the settings of the local engine at the "
                "top of the file"
            )


def speaks_tls(settings: Settings) -> bool:
    """Return whether REST and storage use TLS. gRPC with TLS is always available."""
    return settings.tls or bool(settings.tls_cert)


def _ports(settings: Settings) -> Iterator[tuple[str, int]]:
    """Yield the service's ports with the names of their settings; 0 = any free port."""
    yield "port", settings.port
    for name, distance in _DISTANCES.items():
        if own := getattr(settings, name, 0):
            yield name, own
        else:
            yield f"{name} (port + {distance})", settings.port and settings.port + distance


def _contradictions(settings: Settings) -> Iterator[str]:
    for (name, port), (other, same) in combinations(_ports(settings), 2):
        if port and port == same:
            yield f"{name} and {other} are both {port}; choose another port for one of them"
    if bool(settings.tls_cert) != bool(settings.tls_key):
        there, other = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        yield f"{there} is set without {other}; set both, or neither"
    if any(table.mail for table in settings.notify) and not settings.smtp:
        yield "[[notify]] has mail addresses, but there is no mail server; set smtp"
    engine, table = settings.engine, engine_settings(settings)
    if settings.has_cluster_queue and settings.strict:
        queue = table["queue"]
        yield (
            f'capacity = "strict" makes the service choose nodes, but [engines.{engine}] queue = "{queue}" '
            f"makes {_CLUSTER_QUEUES[engine, queue]} choose them; remove one of these settings"
        )
    elif engine == "slurm" and "machines" in table and not settings.strict:
        others = 'capacity = "relaxed" runs jobs anywhere'
        if settings.has_cluster_queue:
            others = 'queue = "slurm" makes Slurm choose nodes'
        yield (f"[engines.slurm] machines assigns jobs to nodes, but {others}; remove one of these settings")


def _missing_variables(settings: Settings) -> Iterator[str]:
    for name in ("buckets", "notify", "oidc"):
        for number, table in enumerate(getattr(settings, name)):
            for key in table.__struct_fields__:
                variable = key.endswith("_env") and getattr(table, key)
                if variable and not os.environ.get(variable):
                    # The error does not contain the value, because it may be the secret.
                    at = f"{name}[{number}].{key}"
                    yield (
                        f"{at}: the environment variable of this name does not exist; set it for the service"
                    )


def exposure(settings: Settings) -> str | None:
    """Return the reason why tokens would cross the network unencrypted, or None if they would not."""
    if is_loopback(settings.host) or speaks_tls(settings) or settings.insecure:
        return None
    host = settings.host or "0.0.0.0"
    up = f"trainshed up --host {host}"
    return (
        f"--host {host} opens the service to other machines, but tokens and the input of shells would "
        f"cross the network unencrypted. Choose one:\n  {up} --tls                                      "
        f"TLS, with the service's own authority\n  {up} --tls-cert cert.pem --tls-key key.pem      TLS, "
        f"with your certificate\n  {up} --insecure                                 plain HTTP, behind a "
        "proxy that terminates TLS"
    )


def _absolute(file: str | None) -> str | None:
    return file and str(Path(file).expanduser().absolute())


def _with_source(source: str, name: str, line: str) -> str:
    """Add the source to an error, without repeating the name of the setting."""
    names_it = line.startswith((f"{name} ", f"{name}["))
    return f"{source.removesuffix(f': {name}') if names_it else source}: {line}"


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as failure:
        cause = f"{failure.strerror}. Specify the path of a TOML file"
    except ValueError as failure:
        cause = str(failure)
    raise SettingsError(f"The configuration {config} cannot be read: {cause}")
