"""Settings: defaults, then a TOML file, then the environment, then the command line; later wins."""

import os
import tomllib
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
    TRAINSHED_, environment variables.

    `grace`: seconds between SIGTERM and SIGKILL of a replica. `default_bucket`: made at the first start, for
    the demo and for staging. `nodes`: virtual nodes of the local engine. `max_replicas`: how many replicas run at once; further jobs wait.
    `exact_runtimes`: refuse a runtime
    substitution instead of noting it (SPEC §4).
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
    exact_runtimes: bool = False


def load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    """The settings in force. `overrides` are the command line's; None there means "not given".

    Raises SettingsError for unknown keys and values of the wrong type, naming all of them.
    """
    known = {field.name: field.type for field in fields(Settings)}
    wrong: list[str] = []
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values.update(tomllib.loads(config.read_text()))
        except (OSError, tomllib.TOMLDecodeError) as failure:
            raise SettingsError(f"The configuration {config} cannot be read: {failure}") from None
        wrong += [f"{config}: unknown setting {key!r}" for key in values if key not in known]
    for name in known:
        if name in ("data", "cache"):
            continue  # their variables are the defaults' own
        if (text := os.environ.get(f"TRAINSHED_{name.upper()}")) is not None:
            values[name] = text
    values.update({key: value for key, value in overrides.items() if value is not None})
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name in known:
            try:
                converted[name] = _convert(name, value)
            except ValueError as failure:
                wrong.append(f"{name}: {failure}")
    if wrong:
        raise SettingsError("Wrong settings:\n  " + "\n  ".join(wrong))
    settings = replace(Settings(data=default_data(), cache=default_cache()), **converted)
    return replace(settings, data=settings.data.absolute(), cache=settings.cache.absolute())


def _convert(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            return str(value).lower() in ("1", "true", "yes", "on")
        raise ValueError(f"{value!r} is not true or false")
    if issubclass(kind, Path):
        return Path(value).expanduser()
    try:
        converted = kind(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not of type {kind.__name__}") from None
    if name in ("port", "grpc_port") and not 0 <= converted <= 65535:
        raise ValueError(f"{value!r} is not a port (0 = any free one, up to 65535)")
    if name == "nodes" and converted < 1:
        raise ValueError("at least one node is needed")
    if name in _CHOICES and converted not in _CHOICES[name]:
        raise ValueError(f"{value!r} is not one of {', '.join(_CHOICES[name])}")
    return converted


_KINDS: dict[str, type[Any]] = {
    field.name: type(cast("object", getattr(Settings(), field.name))) for field in fields(Settings)
}
_CHOICES = {"engine": ("local",), "database": ("sqlite",)}
