"""What each setting may be: its type, its bounds, its choices, and what else is checked before a service starts with it."""

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from trainshed.buckets.rules import BucketTable
    from trainshed.runtimes.image_map import MappedImage


_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_.-]+")
_ORIGIN = re.compile(r"https?://[a-z0-9_.\[\]:-]+")


def convert(name: str, kind: type[Any], value: Any) -> Any:
    """The value of the setting in its type. Raises ValueError saying what is allowed."""
    if name == "failure_rules":
        return _convert_rules(value)
    if name == "buckets":
        return _bucket_tables(value)
    if name == "images":
        return _image_tables(value)
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
        told = ", ".join(choice for choice in choices if choice)
        raise ValueError(f"{value!r} is not one of {told}.{near(converted, choices)}")
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
                f"{kind!r} is no accelerator type; the types are {', '.join(sorted(types))}.{near(kind, types)}"
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
        raise ValueError(f"{region!r} is not one of {', '.join(known)}.{near(region, known)}")


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


def _bucket_tables(value: Any) -> "tuple[BucketTable, ...]":
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


def _check_hosts(text: str) -> None:
    from trainshed.httpd.hosts import listed

    wrong = [name for name in listed(text) if not _HOST.fullmatch(name)]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: a host is a name without scheme and port, training.example.org, or *.example.org for all "
            "below one; * = any"
        )


def _check_origins(text: str) -> None:
    from trainshed.httpd.hosts import listed

    wrong = [origin for origin in listed(text) if not _ORIGIN.fullmatch(origin)]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: an origin is scheme, host and port of a page, https://console.example.org:8443"
        )


def _check_project(project: str) -> None:
    from trainshed.api.calls.parents import ProjectName
    from trainshed.core.errors import InvalidRequest

    try:
        ProjectName.parse(f"projects/{project}", field="project")
    except InvalidRequest as refused:
        raise ValueError("; ".join(v.description for v in refused.violations)) from None


def near(word: str, known: Iterable[str]) -> str:
    """` Did you mean …?` with what is spelled most alike, in either case; "" if nothing is."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), sorted(names), n=1)
    return f" Did you mean {names[found[0]]}?" if found else ""


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
    "allowed_hosts": _check_hosts,
    "allowed_origins": _check_origins,
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
    "error_delay": 0,
    "max_processes": 0,
    "usage_every": 0,
    "build_memory": 0,
    "build_disk": 0,
    "build_time": 0,
    "shell_idle": 0,
    "autopsy_ttl": 0,
    "autopsy_limit": 0,
}
