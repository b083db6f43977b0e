"""Connects to Google's real hosts from this machine, with the machine's name resolution, proxy and trusted
roots instead of the replica's.

A host that was not reached counts as away for a while, so that callers without internet access need not wait.
Thread-safe.
"""

import base64
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from trainshed.replica.endpoint import messages
from trainshed.replica.system import roots

Address = tuple[str, int]


_PATIENCE = 5.0
"""Seconds for finding and reaching a host."""
_AWAY = 30.0
"""Seconds for which nobody tries again."""
_ANSWER_SECONDS = 120.0


class GoogleHosts:
    """Connections to Google's own hosts."""

    def __init__(
        self,
        proxy: str | None = None,
        trust: str | None = None,
        hosts: Mapping[str, Address] | None = None,
    ) -> None:
        #: URL of an HTTP proxy for all connections.
        self._proxy = proxy
        #: File of trusted authorities; None = the system's.
        self._trust = trust
        #: Addresses of hosts that override name resolution.
        self._hosts = hosts or {}
        self._context: ssl.SSLContext | None = None
        self._away: dict[str, float] = {}

    def connected(self, host: str) -> ssl.SSLSocket | None:
        """Return a connection to a host with a verified certificate; None if it is out of reach."""
        if time.monotonic() < self._away.get(host, 0.0):
            return None
        made: list[ssl.SSLSocket] = []

        def reach() -> None:
            try:
                made.append(self._reach(host))
            except (OSError, ValueError, messages.ConnectionCut, messages.NotHttp):
                pass  # The host counts as out of reach.

        # In a thread, because resolving a name has no time limit.
        reaching = threading.Thread(target=reach, daemon=True)
        reaching.start()
        reaching.join(_PATIENCE)
        if made:
            return made[0]
        self._away[host] = time.monotonic() + _AWAY
        return None

    def _reach(self, host: str) -> ssl.SSLSocket:
        address = self._hosts.get(host, (host, 443))
        text = self._proxy or ""
        proxy = urlsplit(text if "//" in text else "//" + text)
        there = (proxy.hostname, proxy.port or 80) if proxy.hostname else address
        raw = socket.create_connection(there, timeout=_PATIENCE)
        try:
            if proxy.hostname:
                user = "%s:%s" % (unquote(proxy.username or ""), unquote(proxy.password or ""))
                _ask_through(raw, "%s:%d" % address, user if proxy.username else "")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = self._trusting().wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise
        secure.settimeout(_ANSWER_SECONDS)
        return secure

    def _trusting(self) -> ssl.SSLContext:
        if self._context is None:
            made = ssl.create_default_context(cafile=self._trust or None)
            usual = ssl.get_default_verify_paths()
            if not (self._trust or usual.cafile or usual.capath):
                # The interpreter was built with other paths than this system's.
                for path in filter(os.path.exists, roots.PLACES):
                    made.load_verify_locations(path)
            made.set_alpn_protocols(["http/1.1"])
            self._context = made
        return self._context


def _ask_through(raw: socket.socket, place: str, user: str) -> None:
    """Have a proxy connect to `place`. Raises OSError, messages.ConnectionCut, messages.NotHttp."""
    lines = ["CONNECT %s HTTP/1.1" % place, "Host: " + place]
    if user:
        lines.append("Proxy-Authorization: Basic " + base64.b64encode(user.encode()).decode())
    raw.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    # Read byte by byte, because what follows belongs to TLS.
    answer = messages.Incoming(lambda _: raw.recv(1)).head()
    if answer is None or answer.first.split()[1:2] != [b"200"]:
        raise OSError("the proxy does not lead on to " + place)
