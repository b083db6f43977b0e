"""Derives what engines on other machines need from the context of the service."""

import secrets
from pathlib import Path
from typing import Any

from trainshed.engines.local import machine
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.registry import USAGE_EVERY, EngineContext


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


def shared_trust(context: EngineContext) -> str:
    """Return the path of a file of the cache with the authorities that programs trust, written if needed, for
    nodes that see that: agents need not be sent 200 KB each. "" = programs need none. Blocks. Raises
    OSError."""
    text = _text(context.access.trust)
    if not text:
        return ""
    path = context.cache / f"trust-{machine.identity(context.data)}.pem"
    if not path.exists() or path.read_text("utf-8") != text:
        draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
        draft.write_text(text, "utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    return str(path)


def _text(path: Path | None) -> str:
    return path.read_text("utf-8") if path is not None and path.exists() else ""
