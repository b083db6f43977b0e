"""What each engine on other machines takes from the service that it is built for."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.registry import EngineContext
from trainshed.engines.remote.engine import PORT
from trainshed.engines.remote.module_bundle import remove_unused


def doors(context: EngineContext) -> dict[str, Path]:
    """The sockets of the service that programs reach through their agents, by name."""
    access = context.access
    known = {
        "buckets": access.storage_socket,
        "rest": access.rest_socket,
        "grpc": access.grpc_socket,
    }
    return {door: path for door, path in known.items() if path is not None}


def engine_here(context: EngineContext, directory: Path) -> LocalEngine:
    """For what runs on the service's own machine; it writes in `directory`."""
    here = Options(
        hidden=context.hidden,
        visible=context.rules.visible,
        level=context.rules.isolation,
        keeping=Keeping(context.rules.autopsy_ttl, context.rules.autopsy_limit),
        now=context.now,
    )
    zygote = context.zygote if isinstance(context.zygote, ZygoteHandle) else None
    return LocalEngine(directory, here, zygote=zygote)


def told_to_agents(context: EngineContext) -> dict[str, Any]:
    """Fields of an `AgentDocument` that the service's own settings say, certificates among them: files, which
    a service makes and renews before its engine is built, and never later."""
    rules, access = context.rules, context.access
    return {
        "level": rules.isolation,
        "processes": rules.max_processes,
        "usage_every": rules.usage_every,
        "disk_enforced": rules.enforce_disk,
        "hidden": tuple(map(str, context.hidden)),
        "visible": tuple(map(str, rules.visible)),
        "interception": _text(access.certificate),
        "trust": _text(access.trust),
        "doors": tuple(doors(context)),
    }


class SharedTrust:
    """The authorities that programs are to believe, as a file of the cache, for nodes that see that: 200 KB,
    which each agent would be sent otherwise."""

    def __init__(self, context: EngineContext) -> None:
        self._cache = context.cache
        self._source = context.access.trust
        self._text: bytes | None = None
        self._path = Path()

    def path(self) -> str:
        """Where it is; "" = programs need none. Blocks. Raises OSError."""
        if self._text is None:
            text = _text(self._source).encode()
            digest = hashlib.sha256(text).hexdigest()[:16]
            self._path = self._cache / f"trust-{digest}.pem"
            self._text = text
        if not self._text:
            return ""
        try:
            os.utime(self._path)
        except FileNotFoundError:
            remove_unused(self._cache, "trust-*")
            draft = self._path.with_suffix(f".{secrets.token_hex(4)}.new")
            draft.write_bytes(self._text)
            draft.chmod(0o644)
            draft.replace(self._path)
        return str(self._path)


def last_port(directory: Path) -> int:
    """Where agents of jobs that run will call; 0 = nowhere yet."""
    try:
        return int((directory / PORT).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _text(path: Path | None) -> str:
    return path.read_text("utf-8") if path is not None and path.exists() else ""
