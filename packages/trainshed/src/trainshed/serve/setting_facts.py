"""Describes the settings for people: what each one is, in a line, its value, and where that came from.

docs/settings.md says more about each; `tests/unit/test_settings.py` compares both with the fields of
`Settings`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict

from trainshed.access.redaction import REDACTED, redacted
from trainshed.serve.settings import Origin, Settings
from trainshed.wire.trainshed_v1.settings import Setting

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^\s\"']{1,2000}", re.IGNORECASE)
_UNSAFE_PATHS: Final = frozenset({"webhook"})
"""Keys of tables whose whole address is a secret: whoever knows a chat's webhook may write there."""

ABOUT: Final[Mapping[str, Mapping[str, str]]] = {
    "Addresses": {
        "host": "Address to listen on",
        "port": "Port of the REST APIs and of this console; 0 = any free one",
        "grpc_port": "Port of gRPC without TLS, on loopback; 0 = beside the REST port",
        "grpc_tls_port": "Port of gRPC with TLS; 0 = beside the REST port",
        "tls": "All ports speak TLS",
        "insecure": "Speak plain HTTP with other machines",
        "tls_cert": "PEM file of the certificate that is shown",
        "tls_key": "PEM file of its key",
        "web_url": "Where browsers reach this service; empty = where it listens",
        "oidc": "Issuers by which people sign in",
        "allowed_hosts": "Further names by which the service may be called",
    },
    "Data": {
        "data": "Directory of everything that must not be lost",
        "cache": "Directory of built runtimes",
        "project": "Project of clients that name none",
        "region": "Region of clients that name none",
        "shared_buckets": "Buckets that are open to the programs of all projects",
        "buckets": "Buckets that lie in a store elsewhere, or belong to a project",
        "retention_jobs": "How long a job is kept after its end; empty = for ever",
        "retention_size": "How much the logs of jobs that are over may take; empty = any",
    },
    "Capacity": {
        "engine": "Where replicas run",
        "nodes": "Virtual nodes of the local engine",
        "capacity": "Whether nodes have bounds: relaxed or strict",
        "max_replicas": "Replicas that run at once",
        "node_cpus": "CPUs that each node is said to have; 0 = its share of the machine",
        "node_memory": "GiB that each node is said to have; 0 = its share of the machine",
        "node_accelerators": "Accelerators that each node is said to have; empty = what the driver reports",
        "prices": "What an hour of a machine type or an accelerator costs; empty = nothing",
        "lease": "Seconds after which a node or replica that does not answer counts as lost",
        "engines": "Settings of engines that other packages bring",
    },
    "Jobs": {
        "grace": "Seconds between SIGTERM and SIGKILL of a replica",
        "memory_per_replica": "MiB that one replica gets at most; 0 = what its machine type has",
        "max_child_jobs": "Jobs at a time that programs of one job make; 0 = none",
        "failure_rules": "Changes of the failure table",
        "warm_starts": "Programs that begin with their frameworks imported: those of trials, all, or none",
        "idle_gpus": "Seconds that all GPUs of a job may do nothing before it is warned; 0 = for ever",
        "idle_stop": "Seconds after that warning until it is stopped; 0 = it is not",
    },
    "Runtimes": {
        "exact_runtimes": "Refuse a job whose runtime is not here exactly",
        "container_tool": "What gets container images",
        "image_pull": "When an image's registry is asked",
        "images": "What images stand for: runtimes, or other images",
    },
    "Isolation": {
        "isolation": "The level that is demanded; empty = the strongest that works here",
        "visible_paths": "What programs may read of what is hidden from them",
        "max_processes": "Processes of one replica; 0 = any number",
        "enforce_disk": "End a replica whose files take more than its disk",
        "shell": "Whether there are shells in replicas",
        "autopsy_ttl": "Hours for which what a failed replica left is kept; 0 = not at all",
    },
    "Notifications": {
        "notify": "Whom jobs may have told of their end",
        "smtp": "The server that takes mail, and the sender, as smtp://USER@HOST:PORT/SENDER; empty = none",
    },
    "Log of the service": {
        "log_level": "The least level that is logged",
        "log_format": "How its lines are written",
    },
}
"""Descriptions by group, in the order in which they are shown."""


def described(settings: Settings, origins: Mapping[str, Origin]) -> tuple[Setting, ...]:
    """Return all settings with their descriptions. `origins`: of those that are not at their default."""
    default = Settings()
    known = Settings.__struct_fields__
    settings_shown: list[Setting] = []
    for group, members in ABOUT.items():
        for name in (name for name in members if name in known):
            origin = origins.get(name)
            settings_shown.append(
                Setting(
                    name=name,
                    value=_in_force(settings, name),
                    default="" if name in ("data", "cache") else told(getattr(default, name)),
                    source=origin.kind if origin else "default",
                    place=origin.place if origin else "",
                    about=members[name],
                    group=group,
                )
            )
    return tuple(settings_shown)


def _in_force(settings: Settings, name: str) -> str:
    """Return the value in force: if a setting is empty and another one decides, what that one decides."""
    if name == "capacity":
        return "strict" if settings.strict else "relaxed"
    return told(getattr(settings, name))


def told(value: object) -> str:
    """Return a value as text, without what could be a secret in it."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case str() | int() | Path():
            return _masked(str(value))
        case _:
            plain = _plain(value)
            return json.dumps(plain, ensure_ascii=False) if plain else ""


def _plain(value: object, key: str = "") -> Any:
    """Return a value in JSON's types, with secrets masked, and without what is not set."""
    if isinstance(value, Struct):
        value = {name: part for name, part in asdict(value).items() if part not in ("", (), None)}
    if isinstance(value, Mapping):
        table = cast(Mapping[object, object], value)
        return {str(name): _plain(part, str(name)) for name, part in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part, key) for part in cast(Sequence[object], value)]
    if value is None or isinstance(value, bool):
        return value
    # The name of a variable is no secret, and its value is never read here.
    if not key.endswith("_env") and redacted({key: ""})[key]:
        return REDACTED
    if isinstance(value, int | float):
        return value
    return _masked(str(value), is_closed=key in _UNSAFE_PATHS)


def _masked(text: str, *, is_closed: bool = False) -> str:
    """Return a text whose addresses contain no password and no query, and with `is_closed` no path."""

    def shown(match: re.Match[str]) -> str:
        address = match[0]
        try:
            parts = urlsplit(address)
        except ValueError:
            return REDACTED
        host = parts.netloc.rpartition("@")[2]
        user = f"{REDACTED}@" if "@" in parts.netloc else ""
        path = f"/{REDACTED}" if is_closed and parts.path.strip("/") else parts.path
        query = f"?{REDACTED}" if parts.query and not is_closed else ""
        return f"{parts.scheme}://{user}{host}{path}{query}"

    return _ADDRESS.sub(shown, text)
