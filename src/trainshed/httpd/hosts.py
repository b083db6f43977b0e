"""By which names the service may be called, and from which pages: what keeps a browser from being somebody's
hand.

A page of a stranger can have its own name lead to this machine (DNS rebinding), and can send requests that it
may not read. An address is no such name; a name counts only if it is one of ours. What comes by a Unix socket
is of no browser.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Struct

from trainshed.httpd.messages import JSON, Headers, Scope, Send, error_body

ANY = "*"
_ALWAYS = ("localhost", "*.localhost", "host.docker.internal", "gateway.docker.internal")
"""Names that nobody in the public DNS can have."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
Fault = tuple[int, str]
"""A status and what the caller is told."""


class Hosts(Struct, frozen=True):
    """By which names the service may be called, and from which pages. Addresses, and a page of the host that
    it calls, are always fine."""

    #: Host names without ports; `*.example.org` for all below one, `*` for any.
    names: tuple[str, ...] = ()
    #: Pages of others that may call: `https://console.example.org`.
    origins: tuple[str, ...] = ()

    def knows(self, host: str) -> bool:
        """Whether a Host header names this service."""
        name = _name(host)
        return _is_address(name) or any(
            _is_named(name, pattern) for pattern in (*self.names, *_ALWAYS)
        )

    def lets(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may change something at the host that it called."""
        asked = urlsplit(origin)
        if asked.netloc and _bare(asked.netloc) == _bare(host):
            return True
        return origin.lower().rstrip("/") in self.origins

    def fault(self, scope: Scope) -> Fault | None:
        """What is wrong with how a request, or a WebSocket, names this service; None: nothing."""
        _, port = scope.get("server") or ("", 0)
        if port is None:
            return None
        host = origin = None
        headers: Headers = scope["headers"]
        for key, value in headers:
            if key == b"host":
                host = value.decode("latin-1")
            elif key == b"origin":
                origin = value.decode("latin-1")
        if host is not None and not self.knows(host):
            name = _name(host)[:200]
            return 421, (
                f"This service is not known by the name {name!r}. If it is yours, add it to the service's "
                f'setting allowed_hosts (TRAINSHED_ALLOWED_HOSTS="{name}" trainshed up); '
                "or call the service by its address, or as localhost."
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _READING
        if origin is not None and changes and not self.lets(origin, host or ""):
            return 403, (
                f"Pages of {origin[:200]!r} may change nothing here. If they are yours, add them to "
                "the service's setting allowed_origins "
                f'(TRAINSHED_ALLOWED_ORIGINS="{origin[:200]}" trainshed up).'
            )
        return None


def listed(text: str) -> tuple[str, ...]:
    """The entries of a setting with commas in between, in lower case."""
    return tuple(part.strip().lower().rstrip("/") for part in text.split(",") if part.strip())


async def refuse(scope: Scope, send: Send, fault: Fault) -> None:
    """Answer a request, or a WebSocket, that has this fault."""
    status, text = fault
    body = error_body(status, text, "PERMISSION_DENIED")
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket.http.response"
    headers = [
        (b"content-type", JSON),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _name(host: str) -> str:
    """A Host header without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _bare(netloc: str) -> str:
    """Host and port, without the port that goes without saying."""
    return netloc.lower().removesuffix(":80").removesuffix(":443")


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_named(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in (ANY, name.rstrip("."))
