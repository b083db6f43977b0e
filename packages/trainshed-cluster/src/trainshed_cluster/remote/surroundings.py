"""Derives what engines on other machines need from the context of the service."""

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.registry import USAGE_EVERY, EngineContext

_OLD = 30 * 86400.0
"""Seconds after which a file of the cache is removed that no service has used since its start."""


def doors(context: EngineContext) -> dict[str, Path]:
    """Return the service's sockets that programs reach through their agents, by name."""
    access = context.access
    known = {
        "buckets": access.storage_socket,
        "rest": access.rest_socket,
        "grpc": access.grpc_socket,
    }
    return {door: path for door, path in known.items() if path is not None}


def engine_here(context: EngineContext, directory: Path) -> LocalEngine:
    """Make the local engine for what runs on the service's own machine. `directory`: its data."""
    here = Options(
        hidden=context.hidden,
        visible=context.rules.visible,
        level=context.rules.isolation,
        keeping=Keeping(context.rules.autopsy_ttl),
        now=context.now,
    )
    return LocalEngine(directory, here)


def told_to_agents(context: EngineContext) -> dict[str, Any]:
    """Return the fields of an `AgentDocument` that follow from the service's settings. The files of
    certificates are read now: a service makes and renews them before its engine is built, and never later."""
    rules, access = context.rules, context.access
    return {
        "level": rules.isolation,
        "processes": rules.max_processes,
        "usage_every": USAGE_EVERY,
        "disk_enforced": rules.enforce_disk,
        "hidden": tuple(map(str, context.hidden)),
        "visible": tuple(map(str, rules.visible)),
        "interception": _text(access.certificate),
        "trust": _text(access.trust),
        "doors": tuple(doors(context)),
    }


class SharedTrust:
    """The trusted authorities as a file of the cache, for nodes that see that, so that agents need not be
    sent 200 KB each."""

    def __init__(self, context: EngineContext) -> None:
        self._cache = context.cache
        self._source = context.access.trust
        self._text: bytes | None = None
        self._path = Path()

    def path(self) -> str:
        """Return the file's path, written if needed; "" = programs need none. Blocks. Raises OSError."""
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
            _remove_unused(self._cache)
            draft = self._path.with_suffix(f".{secrets.token_hex(4)}.new")
            draft.write_bytes(self._text)
            draft.chmod(0o644)
            draft.replace(self._path)
        return str(self._path)


def _remove_unused(cache: Path) -> None:
    """Remove such files that no service has used for a month, by their times, which services update."""
    for file in cache.glob("trust-*"):
        # Another service may remove them as well.
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < time.time() - _OLD:
                file.unlink()


def _text(path: Path | None) -> str:
    return path.read_text("utf-8") if path is not None and path.exists() else ""
