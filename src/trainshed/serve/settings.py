"""Settings: defaults, then a TOML file, then the environment, then the command line; later wins."""

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast


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
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int = 0
    data: Path = Path()
    cache: Path = Path()
    engine: str = "local"
    database: str = "sqlite"
    nodes: int = 1
    project: str = "trainshed"
    region: str = "us-central1"
    default_bucket: str = "trainshed"
    max_replicas: int = 256
    grace: float = 30.0
    memory_per_replica: int = 0
    exact_runtimes: bool = False


def load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    """The settings in force. `overrides` are the command line's; None there means "not given".

    Raises SettingsError for unknown keys and values of the wrong type, naming all of them.
    """
    known = {field.name for field in fields(Settings)}
    wrong: list[str] = []
    values: dict[str, tuple[Any, str]] = {}
    if config is not None:
        document = _read(config)
        values.update({key: (value, str(config)) for key, value in document.items()})
        wrong += [f"{config}: unknown setting {key!r}" for key in document if key not in known]
    for name in known - {"data", "cache"}:  # their variables are the defaults' own
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
                wrong.append(f"{source}: {name}: {failure}")
    if wrong:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(sorted(wrong)))
    settings = replace(Settings(data=default_data(), cache=default_cache()), **converted)
    return replace(settings, data=settings.data.absolute(), cache=settings.cache.absolute())


def _read(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except (OSError, ValueError) as failure:
        raise SettingsError(f"The configuration {config} cannot be read: {failure}") from None


def _convert(name: str, value: Any) -> Any:
    """The value in the setting's type. Raises ValueError saying what is allowed."""
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
    if name in ("port", "grpc_port") and not 0 <= converted <= 65535:
        raise ValueError(f"{value!r} is not a port (0 = any free one, up to 65535)")
    if name in _LEAST and not _LEAST[name] <= converted < float("inf"):
        raise ValueError(f"{value!r} is not {_LEAST[name]} or more")
    if name in _RULES:
        _RULES[name](converted)
    if name in _CHOICES and converted not in _CHOICES[name]:
        raise ValueError(f"{value!r} is not one of {', '.join(_CHOICES[name])}")
    return converted


def _convert_flag(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is not true or false")


def _check_region(region: str) -> None:
    # Imported here and below: the defaults need no check, and a start is short.
    from trainshed.core.catalog.regions import regions
    from trainshed.core.names import Api

    if region not in (known := regions(Api.VERTEX)):
        raise ValueError(f"{region!r} is not one of {', '.join(known)}")


def _check_bucket(name: str) -> None:
    from trainshed.buckets.errors import BucketsError
    from trainshed.buckets.paths import validate_bucket_name

    try:
        validate_bucket_name(name)
    except BucketsError as failure:
        raise ValueError(str(failure)) from None


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
_CHOICES = {"engine": ("local",), "database": ("sqlite",)}
_RULES: dict[str, Callable[[str], None]] = {
    "region": _check_region,
    "default_bucket": _check_bucket,
    "project": _check_project,
}
_LEAST = {"nodes": 1, "max_replicas": 1, "grace": 0, "memory_per_replica": 0}
