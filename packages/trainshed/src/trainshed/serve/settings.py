"""Reads settings: defaults, then a TOML file, then the environment, then the command line; later ones win."""

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
    """A setting that cannot be used. The message names the setting, its source and what is allowed."""


_DISTANCES = {
    "the port of buckets": 1,
    "grpc_port": 2,
    "grpc_tls_port": 3,
    "the TLS port of buckets": 4,
}
"""Distances of ports from that of REST, where no setting chooses another one."""


def default_cache() -> Path:
    """Return the directory of built runtimes, shared by all services of a user: $TRAINSHED_CACHE or
    ~/.cache/trainshed."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainshed"
    return Path(os.environ.get("TRAINSHED_CACHE") or fallback).expanduser()


class Settings(Struct, frozen=True):
    """All settings of a service; their types say which values are allowed.

    Their names are the keys of the TOML file and, in upper case after TRAINSHED_, environment variables;
    docs/settings.md describes them for people.
    """

    #: Address to listen on.
    host: str = "127.0.0.1"
    #: Port of REST; 0 = any free one.
    port: Port = 8080
    #: Ports of gRPC without and with TLS; 0 = beside the REST port.
    grpc_port: Port = 0
    grpc_tls_port: Port = 0
    #: Whether all ports speak TLS, except with this machine, which may use plain HTTP.
    tls: bool = False
    #: Whether ports speak plain HTTP with other machines, for instance behind a proxy that speaks TLS.
    insecure: bool = False
    #: PEM files of the certificate and its key, both or none; with them all ports speak TLS.
    tls_cert: str | None = None
    tls_key: str | None = None
    #: Directory of everything that must not be lost.
    data: Path = Path()
    #: Directory of built runtimes, shared by all services of a user.
    cache: Path = Path()
    #: How much the cache may take, as `setting_types.parse_size` reads it; None = any size.
    cache_size: Size | None = None
    #: The engine that runs replicas.
    engine: Engine = "local"
    #: Virtual nodes of the local engine.
    nodes: Positive = 1
    #: Project and region of clients that name none.
    project: Project = "trainshed"
    region: Region = "us-central1"
    #: How many replicas run at once; further jobs wait.
    max_replicas: Positive = 256
    #: Seconds between SIGTERM and SIGKILL of a replica.
    grace: Amount = 30.0
    #: Most memory of one replica in MiB, whatever its machine type has; 0 = what the machine type has.
    memory_per_replica: Count = 0
    #: Refuse a runtime substitution instead of noting it (spec/runtimes#substitutes).
    exact_runtimes: bool = False
    #: Whether nodes have bounds (spec/queue#quotas); None = nodes of a cluster do, this machine does not.
    capacity: Capacity | None = None
    #: CPUs, memory in GiB, and accelerators as TYPE=COUNT,… that each node is said to have; 0 and "" = its
    #: share of the machine.
    node_cpus: Amount = 0.0
    node_memory: Amount = 0.0
    node_accelerators: NodeAccelerators = ""
    #: Days after which past use counts half in the fair share.
    half_life: Days = 7.0
    #: Jobs that are not over, of those that programs of one job made, or of jobs that it made; 0 = none.
    max_child_jobs: Count = 20
    #: Which programs begin with their frameworks imported, unless their jobs say otherwise.
    warm_starts: WarmStarts = "trials"
    #: The address at which browsers reach this service; None = where it listens.
    web_url: WebUrl | None = None
    #: Further hostnames of the service, with commas in between.
    allowed_hosts: HostNames = ""
    #: The isolation level that is demanded; None = the strongest that works here.
    isolation: Isolation | None = None
    #: Directories that programs may read although they are hidden by default, with colons in between.
    visible_paths: Directories = ""
    #: Most processes and threads of one replica, or of one installation of packages; 0 = any number.
    max_processes: Count = 32_768
    #: Whether a replica is ended whose files take more than the disk that its job asked for.
    enforce_disk: bool = False
    #: Whether shells can be opened in replicas.
    shell: Literal["on", "off"] = "on"
    #: Hours for which autopsies of failed replicas are kept; 0 = not at all.
    autopsy_ttl: Amount = 24.0
    #: How long a job is kept after its end; None = for ever.
    retention_jobs: Age | None = None
    #: What an hour of a machine type, or of an accelerator, costs: TYPE=AMOUNT,…; what is left out is free.
    prices: PriceList = ""
    #: The mail server for `notify`, as smtp://USER@HOST:PORT/SENDER; None = there is none.
    smtp: MailServer | None = None
    #: Seconds for which all GPUs of a job may be idle before its timeline says so; 0 = for ever.
    idle_gpus: Amount = 0.0
    #: Seconds after that warning until a job that is still idle is stopped; 0 = it is not.
    idle_stop: Amount = 0.0
    #: Format of the lines in the service's log.
    log_format: LogFormat = "text"
    #: The lowest level that is logged; each request is logged at info.
    log_level: LogLevel = "warning"
    #: Tables that change the failure table (spec/failures#rules).
    failure_rules: FailureRules = ()
    #: The program that pulls container images.
    container_tool: ContainerTool = "auto"
    #: Tables that map images to runtimes or to other images; the first that matches wins
    #: (spec/runtimes#images).
    images: MappedImages = ()
    #: Tables of buckets that lie in another store, belong to other projects, or are open to all.
    buckets: BucketTables = ()
    #: Tables of issuers by which people sign in.
    oidc: IssuerTables = ()
    #: Tables of targets that jobs may notify of their end.
    notify: NotifyTables = ()
    #: Tables of engines other than the local one, by name, as they are in the file; each engine checks its
    #: own. Those of the local engine are the settings of `LOCAL_ENGINE`.
    engines: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def strict(self) -> bool:
        bounded = self.engine in ("kubernetes", "slurm") and not self.is_handed_down
        return (self.capacity or ("strict" if bounded else "relaxed")) == "strict"

    @property
    def is_handed_down(self) -> bool:
        """Whether jobs wait for nodes in the queue of a cluster, and not in the service's own."""
        return (self.engine, engine_settings(self).get("queue")) in _HANDED_DOWN


_HANDED_DOWN = {("slurm", "slurm"): "Slurm", ("kubernetes", "kueue"): "Kueue"}
"""By engine and its setting `queue`: the scheduler that gives jobs their nodes instead of the service."""
LOCAL_ENGINE = ("nodes", "node_cpus", "node_memory", "node_accelerators")
"""Settings of the local engine alone."""


def load(config: Path | None, overrides: dict[str, Any], *, to_serve: bool = False) -> Settings:
    """Return the settings in force. `overrides` are the command line's; None there means "not given". Only
    `to_serve` the secrets of tables are needed, which are in the environment of the service alone.

    Raises SettingsError for unknown keys and values of the wrong type, naming all of them, and for settings
    that do not fit together.
    """
    known = Settings.__annotations__
    wrong: list[str] = []
    values: dict[str, tuple[Any, str]] = {}
    if config is not None:
        document = _read(config)
        wrong += _engine_tables(config, document.get("engines", {}))
        values.update({key: (value, f"{config}: {key}") for key, value in document.items()})
        wrong += [
            f"{config}: unknown setting {key!r}.{closest(key, known) or ' docs/settings.md lists all.'}"
            for key in document
            if key not in known
        ]
    # The defaults of these two read their variables.
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
                wrong += [_told(source, name, line) for line in str(failure).splitlines()]
    settings = replace(Settings(data=data_directory(None), cache=default_cache()), **converted)
    missing = _missing_variables(settings) if to_serve else ()
    if wrong := wrong or [*_contradictions(settings), *missing]:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(sorted(wrong)))
    if cause := exposed(settings):
        raise SettingsError(cause)
    return replace(
        settings,
        data=settings.data.resolve(),  # What is mounted over a link is not what is behind it.
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
    """Yield what is wrong in the tables of engines, as far as a service can tell; each checks its own."""
    tables = cast("dict[str, Any]", value) if isinstance(value, dict) else {"NAME": value}
    for name, table in tables.items():
        if not isinstance(table, dict):
            yield f"{config}: engines: write settings of an engine as a table: [engines.{name}]"
        elif name == "local":
            yield f"{config}: engines.local: write these settings at the top of the file"


def speaks_tls(settings: Settings) -> bool:
    """Whether REST and storage speak TLS, as gRPC does in any case."""
    return settings.tls or bool(settings.tls_cert)


def _ports(settings: Settings) -> Iterator[tuple[str, int]]:
    """Yield the service's ports with their names; 0 = any free one."""
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
        yield "[[notify]] has addresses of mail; set smtp for it"
    engine, table = settings.engine, engine_settings(settings)
    if settings.is_handed_down and settings.strict:
        queue = table["queue"]
        yield (
            f'[engines.{engine}] queue = "{queue}" has {_HANDED_DOWN[engine, queue]} choose nodes, and '
            'capacity = "strict" has the service do so; take one of them away'
        )
    elif engine == "slurm" and "machines" in table and not settings.strict:
        others = 'capacity = "relaxed" has jobs run anywhere'
        if settings.is_handed_down:
            others = 'queue = "slurm" has Slurm choose'
        yield (
            f"[engines.slurm] machines say which nodes take which jobs, and {others}; take one of them "
            "away"
        )


def _missing_variables(settings: Settings) -> Iterator[str]:
    for name in ("buckets", "notify", "oidc"):
        for number, table in enumerate(getattr(settings, name)):
            for key in table.__struct_fields__:
                variable = key.endswith("_env") and getattr(table, key)
                if variable and not os.environ.get(variable):
                    # Its value is not shown: it may be the secret itself.
                    at = f"{name}[{number}].{key}"
                    yield f"{at}: there is no environment variable of this name; set it for the service"


def exposed(settings: Settings) -> str | None:
    """Return why a service would be open to everybody on the network; None = it is not."""
    if is_loopback(settings.host) or speaks_tls(settings) or settings.insecure:
        return None
    host = settings.host or "0.0.0.0"
    up = f"trainshed up --host {host}"
    return (
        f"--host {host}: others would reach the service there, and tokens and what is typed into shells "
        "would go over the network as they are. Choose one:\n"
        f"  {up} --tls                                      TLS, by an authority of the service's own\n"
        f"  {up} --tls-cert cert.pem --tls-key key.pem      TLS, by a certificate of yours\n"
        f"  {up} --insecure                                 plain HTTP: behind a proxy that speaks TLS"
    )


def _absolute(file: str | None) -> str | None:
    return file and str(Path(file).expanduser().absolute())


def _told(source: str, name: str, line: str) -> str:
    """Return an error with its source; a line that names the setting's own parts does not name it twice."""
    names_it = line.startswith((f"{name} ", f"{name}["))
    return f"{source.removesuffix(f': {name}') if names_it else source}: {line}"


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as failure:
        cause = f"{failure.strerror}; give the path of a TOML file"
    except ValueError as failure:
        cause = str(failure)
    raise SettingsError(f"The configuration {config} cannot be read: {cause}")
