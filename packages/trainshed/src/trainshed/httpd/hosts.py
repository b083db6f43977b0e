"""Protection against DNS rebinding and CSRF: checks the host name of each request, and the origin of each
request that changes something.

- With DNS rebinding, another site lets its own host name resolve to this machine. Therefore a host name must
  belong to this service. IP addresses are always accepted, since rebinding needs a name.
- With CSRF, another site sends requests from a browser, although it cannot read the responses. Therefore the
  origin must belong to this service.

Requests over a Unix socket are not checked, since browsers cannot send them.
"""

import ipaddress
import re
from functools import lru_cache

from msgspec import Struct

from trainshed.httpd.messages import JSON, Headers, Message, Scope, Send, error_body

ANY = "*"
_ALWAYS = ("localhost", "*.localhost", "host.docker.internal", "gateway.docker.internal")
"""Host names that are always accepted, because another site cannot register them in the public DNS."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header in lower case: an IPv6 address in brackets, an IPv4 address or a name, with an optional port.
"""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
Fault = tuple[int, str]
"""An HTTP status and the error message for the caller."""


class Hosts(Struct, frozen=True):
    """The accepted host names and origins. IP addresses and same-origin pages are always accepted."""

    #: Host names without ports; `*.example.org` = all subdomains, `*` = any.
    names: tuple[str, ...] = ()
    #: Additional origins of the service's own pages, such as `https://console.example.org`.
    origins: tuple[str, ...] = ()

    def is_known_host(self, host: str) -> bool:
        """Whether a Host header contains an IP address or an accepted host name."""
        name = name_of(host)
        return _is_address(name) or any(_is_named(name, pattern) for pattern in (*self.names, *_ALWAYS))

    def is_own_host(self, host: str, called: str | None) -> bool:
        """Whether a token with `host` in its audience is intended for this service.

        An IP address may belong to any machine. Therefore it must be a loopback address, be in the settings,
        or equal `called`: the host by which the service was called earlier; None = unknown.
        """
        name = name_of(host)
        if not _is_address(name) or called is None:
            return self.is_known_host(host)
        return ipaddress.ip_address(name).is_loopback or name in (*self.names, called)

    def bucket_in(self, host: str) -> str:
        """Return BUCKET if the Host header is `BUCKET.NAME`, where NAME is one of `names` or localhost.
        Otherwise return ""."""
        name = name_of(host)
        own_names = [] if name in self.names else ["localhost", *self.names]
        prefixes = (name.removesuffix(f".{own}") for own in own_names if not own.startswith(ANY))
        return next((bucket for bucket in prefixes if bucket != name), "")

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may send changes to this host (CSRF check)."""
        page = origin.partition("://")[2]
        is_same_origin = page != "" and _without_default_port(page) == _without_default_port(host)
        return is_same_origin or origin.lower().rstrip("/") in self.origins

    def fault(self, scope: Scope) -> Fault | None:
        """Return the error of a request or WebSocket with a wrong host or origin, or None if both are
        accepted."""
        _, port = scope.get("server") or ("", 0)
        if port is None:
            return None
        host = origin = None
        headers: Headers = scope["headers"]
        for key, value in headers:
            if key == b"host":
                if host is not None:
                    return 400, "The request has two Host headers. Send one."
                host = value.decode("latin-1")
            elif key == b"origin":
                origin = value.decode("latin-1")
        if host is not None and not self.is_known_host(host):
            name = (name_of(host) or host)[:200]
            return 421, (
                f"This service is not known by the name {name!r}. If it is yours, add it to the service's "
                f'setting allowed_hosts (TRAINSHED_ALLOWED_HOSTS="{name}" trainshed up). Or call the service '
                "by its IP address, or as localhost."
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        if origin is not None and changes and not self.allows_origin(origin, host or ""):
            return 403, (
                f"Pages of {origin[:200]!r} may not send changes to this service. If browsers reach this "
                "service under "
                f'that address, set web_url (TRAINSHED_WEB_URL="{origin[:200]}" trainshed up).'
            )
        return None


def parse_list(text: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated setting, in lower case."""
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
    """Return the name or address in a Host header, in lower case; "" if the header is malformed."""
    matched = _HOST.fullmatch(host.strip().lower())
    return (matched[1] or matched[2]) if matched is not None else ""


def _without_default_port(netloc: str) -> str:
    """Return host and port without port 80 or 443."""
    return netloc.lower().removesuffix(":80").removesuffix(":443")


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is reachable only from this machine."""
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


def keep_credentials(scope: Scope, refusal: Message) -> Message:
    """Replace a 401 response by a 403 for a browser that sent the console's credentials (HTTP Basic).

    A browser drops these credentials after any 401 from this port. A link to the API would therefore sign the
    user out of the console. A 401 response that requests HTTP Basic credentials stays unchanged.
    """
    headers: Headers = scope["headers"]
    has_credentials = any(
        name == b"authorization" and value[:6].lower() == b"basic " for name, value in headers
    )
    challenge = dict(refusal.get("headers", ())).get(b"www-authenticate", b"")
    if has_credentials and not challenge.startswith(b"Basic"):
        return {**refusal, "status": 403}
    return refusal
