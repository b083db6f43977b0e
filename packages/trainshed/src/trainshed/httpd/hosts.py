"""Decides by which host names the service may be called, and from which web pages, so that a stranger's page
cannot use a visitor's browser against it.

A stranger's page can have its own name resolve to this machine (DNS rebinding), and can send requests whose
answers it may not read. So a host name must be one of ours; addresses are always fine, since no such attack
has one. What comes by a Unix socket does not come from a browser.
"""

import ipaddress
import re
from functools import lru_cache

from msgspec import Struct

from trainshed.httpd.messages import JSON, Headers, Message, Scope, Send, error_body

ANY = "*"
_ALWAYS = ("localhost", "*.localhost", "host.docker.internal", "gateway.docker.internal")
"""Names that nobody can have in the public DNS."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header in lower case: an IPv6 address in brackets, or another address or name, and a port."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
Fault = tuple[int, str]
"""An HTTP status and the message to the caller."""


class Hosts(Struct, frozen=True):
    """The host names and web pages that may call. Addresses, and pages of the host that they call, always
    may."""

    #: Host names without ports; `*.example.org` is for all below one, `*` for any.
    names: tuple[str, ...] = ()
    #: Where browsers reach the service if not at the host that they call, `https://console.example.org`.
    origins: tuple[str, ...] = ()

    def knows(self, host: str) -> bool:
        """Whether a Host header names this service."""
        name = name_of(host)
        return _is_address(name) or any(
            _is_named(name, pattern) for pattern in (*self.names, *_ALWAYS)
        )

    def owns(self, host: str, called: str | None) -> bool:
        """Whether what is meant for a host is meant for this service: an address may be anybody's, unless it
        is of the machine itself, in the settings, or that by which the service was `called` once; None = it
        is not known which that was."""
        name = name_of(host)
        if not _is_address(name) or called is None:
            return self.knows(host)
        return ipaddress.ip_address(name).is_loopback or name in (*self.names, called)

    def bucket_in(self, host: str) -> str:
        """Returns BUCKET of a Host header `BUCKET.NAME` with one of the names, or with localhost; "" if it
        is none."""
        name = name_of(host)
        owned = [] if name in self.names else ["localhost", *self.names]
        cut = (name.removesuffix(f".{own}") for own in owned if not own.startswith(ANY))
        return next((bucket for bucket in cut if bucket != name), "")

    def lets(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may change something at the host that it called."""
        page = origin.partition("://")[2]
        is_its_own = page != "" and _bare(page) == _bare(host)
        return is_its_own or origin.lower().rstrip("/") in self.origins

    def fault(self, scope: Scope) -> Fault | None:
        """Returns what is wrong with the host or origin of a request or WebSocket; None if nothing is."""
        _, port = scope.get("server") or ("", 0)
        if port is None:
            return None
        host = origin = None
        headers: Headers = scope["headers"]
        for key, value in headers:
            if key == b"host":
                if host is not None:
                    return 400, "The request names two hosts: send one Host header."
                host = value.decode("latin-1")
            elif key == b"origin":
                origin = value.decode("latin-1")
        if host is not None and not self.knows(host):
            name = (name_of(host) or host)[:200]
            return 421, (
                f"This service is not known by the name {name!r}. If it is yours, add it to the service's "
                f'setting allowed_hosts (TRAINSHED_ALLOWED_HOSTS="{name}" trainshed up); '
                "or call the service by its address, or as localhost."
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _READING
        if origin is not None and changes and not self.lets(origin, host or ""):
            return 403, (
                f"Pages of {origin[:200]!r} may change nothing here. If that is where browsers reach this "
                f'service, say so with the setting web_url (TRAINSHED_WEB_URL="{origin[:200]}" trainshed up).'
            )
        return None


def listed(text: str) -> tuple[str, ...]:
    """The entries of a comma-separated setting, in lower case."""
    return tuple(part.strip().lower().rstrip("/") for part in text.split(",") if part.strip())


async def refuse(scope: Scope, send: Send, fault: Fault) -> None:
    status, text = fault
    body = error_body(status, text, "PERMISSION_DENIED")
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket.http.response"
    headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


@lru_cache(256)
def name_of(host: str) -> str:
    """The name or address in a Host header, in lower case; "" if the header has not that form."""
    matched = _HOST.fullmatch(host.strip().lower())
    return (matched[1] or matched[2]) if matched is not None else ""


def _bare(netloc: str) -> str:
    """Host and port of an address, without the scheme's default port."""
    return netloc.lower().removesuffix(":80").removesuffix(":443")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def keeping_credentials(scope: Scope, refusal: Message) -> Message:
    """Return the beginning of a 401 to a request, as a 403 to a browser that has sent the console's
    credentials.

    Browsers forget them at any 401 of the port, so a link to the API would sign their owner out. A challenge
    for such credentials stays as it is."""
    headers: Headers = scope["headers"]
    has_sent = any(
        name == b"authorization" and value[:6].lower() == b"basic " for name, value in headers
    )
    challenge = dict(refusal.get("headers", ())).get(b"www-authenticate", b"")
    if has_sent and not challenge.startswith(b"Basic"):
        return {**refusal, "status": 403}
    return refusal
