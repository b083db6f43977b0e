"""Settings: defaults, then a TOML file, then the environment, then the command line; later wins."""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainshed.buckets.rules import BucketTable

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
    after which a program is ended, 0 = never. `grpc`: whether there is gRPC; its ports, 0 = beside the REST port.
    `shared_buckets`: open to the programs of all projects, with commas in between; `anonymous_storage`: the storage
    port asks nobody who he is; `buckets`: tables of buckets that lie elsewhere, or belong to other projects.
    `web_url`: where browsers reach this service, "" = where it listens. `shell`: on or off, whether there are shells in
    replicas; `shell_idle`: seconds without a byte after which one is hung up, 0 = never. `autopsy_ttl`: hours for which what a
    failed replica left is kept, 0 = not at all; `autopsy_limit`: GiB of all that is kept.
    `tls_cert`, `tls_key`: PEM files that it shows, both or none. `failure_rules`: tables that change the failure table (SPEC §2.1).
    `isolation`: the level that is demanded, "" = the strongest that works here; `visible_paths`: what programs may read
    of what is hidden from them otherwise, with colons in between; `max_processes`: of one replica, 0 = any number;
    `usage_every`: seconds between two looks at what a replica uses, 0 = nobody looks.
    `container_tool`: what gets container images; `image_pull`: when their registries are asked.
    `images`: tables that map images to runtimes or to other images, the first that fits wins (SPEC §4).
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc: bool = True
    grpc_port: int = 0
    grpc_tls_port: int = 0
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
    tuning_engine: str = "gp-bandit"
    max_study_trials: int = 1000
    web_url: str = ""
    isolation: str = ""
    visible_paths: str = ""
    max_processes: int = 32768
    usage_every: float = 10.0
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
            f"{config}: unknown setting {key!r}.{_near(key, known) or ' docs/settings.md lists all.'}"
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
                converted[name] = _convert(name, value)
            except ValueError as failure:
                wrong += [_told(source, name, line) for line in str(failure).splitlines()]
    wrong += _halves(values)
    if wrong:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(sorted(wrong)))
    settings = replace(Settings(data=default_data(), cache=default_cache()), **converted)
    return replace(
        settings,
        data=settings.data.absolute(),
        cache=settings.cache.absolute(),
        tls_cert=_absolute(settings.tls_cert),
        tls_key=_absolute(settings.tls_key),
    )


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


def _near(word: str, known: Iterable[str]) -> str:
    """` Did you mean …?` with what is spelled most alike, in either case; "" if nothing is."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), sorted(names), n=1)
    return f" Did you mean {names[found[0]]}?" if found else ""


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as failure:
        cause = f"{failure.strerror}; give the path of a TOML file"
    except ValueError as failure:
        cause = str(failure)
    raise SettingsError(f"The configuration {config} cannot be read: {cause}")


def _convert(name: str, value: Any) -> Any:
    """The value in the setting's type. Raises ValueError saying what is allowed."""
    if name == "failure_rules":
        return _convert_rules(value)
    if name == "buckets":
        return _bucket_tables(value)
    if name == "images":
        return _image_tables(value)
    kind = _KINDS[name]
    if kind is bool:
        return _convert_flag(value)
    # A number may also come as text (from the environment), a text or a path never as a number.
    taken = (str, int, float) if kind in _WORDS else (str, Path)
    if isinstance(value, bool) or not isinstance(value, taken):
        raise ValueError(f"{value!r} is not {_WORDS.get(kind, 'a text')}")
    if issubclass(kind, Path):
        return Path(str(value)).expanduser()
    try:
        converted = kind(str(value))
    except ValueError:
        raise ValueError(f"{value!r} is not {_WORDS[kind]}") from None
    if name.endswith("port") and not 0 <= converted <= 65535:
        raise ValueError(f"{value!r} is not a port (0 = any free one, up to 65535)")
    if name in _LEAST and not _LEAST[name] <= converted < float("inf"):
        raise ValueError(f"{value!r} is not {_LEAST[name]} or more")
    if name in _RULES:
        _RULES[name](converted)
    if name in _CHOICES and converted not in _CHOICES[name]:
        choices = _CHOICES[name]
        raise ValueError(
            f"{value!r} is not one of {', '.join(choices)}.{_near(converted, choices)}"
        )
    return converted


def _convert_flag(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is not true or false")


def _convert_rules(value: Any) -> tuple[dict[str, Any], ...]:
    from trainshed.core.failure.overrides import table_with

    tables = _tables("failure_rules", value)
    table_with(tables)
    return tables


def _image_tables(value: Any) -> "tuple[MappedImage, ...]":
    from trainshed.runtimes.image_map import read_images

    return read_images(_tables("images", value))


def _tables(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, dict) for one in cast("list[Any]", value)
    ):
        raise ValueError(f"write each entry as a table of its own: [[{name}]]")
    return tuple(cast("list[dict[str, Any]]", value))


def _check_accelerators(text: str) -> None:
    accelerators_of(text)


def accelerators_of(text: str) -> tuple[tuple[str, int], ...]:
    """`NVIDIA_TESLA_T4=2,NVIDIA_L4=1` as pairs. Raises ValueError."""
    from trainshed.core.catalog.accelerators import accelerator_types
    from trainshed.core.names import Api

    types = accelerator_types(Api.VERTEX)
    found: list[tuple[str, int]] = []
    for part in filter(None, text.split(",")):
        kind, _, count = part.strip().partition("=")
        if kind not in types:
            raise ValueError(
                f"{kind!r} is no accelerator type; the types are {', '.join(sorted(types))}.{_near(kind, types)}"
            )
        if not count.isdecimal() or not int(count):
            raise ValueError(f"{part!r} is not of the form TYPE=COUNT with a count of 1 or more")
        found.append((kind, int(count)))
    return tuple(found)


def _check_region(region: str) -> None:
    # Imported here and below: the defaults need no check, and a start is short.
    from trainshed.core.catalog.regions import regions
    from trainshed.core.names import Api

    if region not in (known := regions(Api.VERTEX)):
        raise ValueError(f"{region!r} is not one of {', '.join(known)}.{_near(region, known)}")


def _check_bucket(name: str) -> None:
    from trainshed.buckets.errors import BucketsError
    from trainshed.buckets.paths import validate_bucket_name

    try:
        validate_bucket_name(name)
    except BucketsError as failure:
        raise ValueError(str(failure)) from None


def _check_paths(text: str) -> None:
    missing = [path for path in filter(None, text.split(":")) if not Path(path).is_dir()]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} is no directory; give absolute paths of directories"
        )


def _check_buckets(names: str) -> None:
    from trainshed.serve.bucket_tables import check_names

    check_names(names)


def _bucket_tables(value: Any) -> tuple["BucketTable", ...]:
    from trainshed.serve.bucket_tables import bucket_tables

    return bucket_tables(value)


def _check_engine(name: str) -> None:
    """An engine that is not there is told of at the start, not to each job."""
    from importlib.util import find_spec

    needed = {
        "optuna-tpe": ("optuna", "optuna"),
        "optuna-gp": ("optuna", "torch"),
        "google-vizier": ("vizier", "vizier"),
    }
    if name in needed:
        extra, module = needed[name]
        if find_spec(module) is None:
            raise ValueError(
                f"the engine {name} needs a library that is not installed; install trainshed[{extra}], or choose gp-bandit"
            )


def _check_web_url(url: str) -> None:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(
            f"{url!r} is not the address of a page, such as https://training.example.org"
        )


def _check_project(project: str) -> None:
    from trainshed.api.parents import ProjectName
    from trainshed.core.errors import InvalidRequest

    try:
        ProjectName.parse(f"projects/{project}", field="project")
    except InvalidRequest as refused:
        raise ValueError("; ".join(v.description for v in refused.violations)) from None


_KINDS: dict[str, type[Any]] = {
    field.name: type(cast("object", getattr(Settings(), field.name))) for field in fields(Settings)
}
_WORDS: dict[type[Any], str] = {int: "a whole number", float: "a number"}
_CHOICES = {
    "engine": ("local",),
    "database": ("sqlite",),
    "capacity": ("relaxed", "strict"),
    "quotas": ("unlimited", "public"),
    "isolation": ("", "own-user", "root", "user", "session"),
    "shell": ("on", "off"),
    "container_tool": ("auto", "podman", "docker", "none"),
    "image_pull": ("missing", "always", "never"),
    "tuning_engine": ("gp-bandit", "optuna-tpe", "optuna-gp", "google-vizier"),
}
_RULES: dict[str, Callable[[str], None]] = {
    "region": _check_region,
    "default_bucket": _check_bucket,
    "visible_paths": _check_paths,
    "shared_buckets": _check_buckets,
    "project": _check_project,
    "node_accelerators": _check_accelerators,
    "tuning_engine": _check_engine,
    "web_url": _check_web_url,
}
_LEAST = {
    "nodes": 1,
    "max_replicas": 1,
    "max_study_trials": 0,
    "grace": 0,
    "memory_per_replica": 0,
    "node_cpus": 0,
    "node_memory": 0,
    "patience": 0,
    "lease": 1,
    "max_attempts": 1,
    "stall_after": 0,
    "max_processes": 0,
    "usage_every": 0,
    "shell_idle": 0,
    "autopsy_ttl": 0,
    "autopsy_limit": 0,
}
