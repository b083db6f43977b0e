"""Connects to Google's real hosts from this machine, with the machine's name resolution, proxy and trusted
roots instead of the replica's.

After a failure, a host counts as unreachable for some time, so that callers without internet access need not
wait. Thread-safe.
"""

import base64
import http.client
import os
import ssl
import threading
import time
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from trainshed.replica.system import roots

Address = tuple[str, int]

_TIMEOUT = 5.0
"""Timeout in seconds for resolving a host's name and connecting to the host."""
_RETRY_INTERVAL = 30.0
"""Seconds before the next attempt to reach a host after a failure."""
_ANSWER_TIMEOUT = 120.0


class GoogleHosts:
    """Opens connections to Google's own hosts."""

    def __init__(
        self, proxy: str | None = None, trust: str | None = None, hosts: Mapping[str, Address] | None = None
    ) -> None:
        #: URL of an HTTP proxy for all connections.
        self._proxy = proxy
        #: File of trusted authorities; None = the system's.
        self._trust = trust
        #: Addresses of hosts, by the host's name. For all other hosts, the machine resolves the name.
        self._hosts = hosts or {}
        self._context: ssl.SSLContext | None = None
        self._away: dict[str, float] = {}

    def connect(self, host: str) -> ssl.SSLSocket | None:
        """Return a connection to a host with a verified certificate, or None if the host is unreachable."""
        if time.monotonic() < self._away.get(host, 0.0):
            return None
        made: list[ssl.SSLSocket] = []

        def reach() -> None:
            try:
                made.append(self._reach(host))
            except (OSError, ValueError, http.client.HTTPException):
                pass  # The host counts as unreachable.

        # Connect in another thread, because name resolution has no timeout: after `_TIMEOUT`, stop waiting.
        reaching = threading.Thread(target=reach, daemon=True)
        reaching.start()
        reaching.join(_TIMEOUT)
        if made:
            return made[0]
        self._away[host] = time.monotonic() + _RETRY_INTERVAL
        return None

    def _reach(self, host: str) -> ssl.SSLSocket:
        name, port = self._hosts.get(host, (host, 443))
        text = self._proxy or ""
        proxy = urlsplit(text if "//" in text else "//" + text)
        if proxy.hostname:
            way = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=_TIMEOUT)
            user = "%s:%s" % (unquote(proxy.username or ""), unquote(proxy.password or ""))
            basic = "Basic " + base64.b64encode(user.encode()).decode()
            way.set_tunnel(name, port, {"Proxy-Authorization": basic} if proxy.username else {})
        else:
            way = http.client.HTTPConnection(name, port, timeout=_TIMEOUT)
        try:
            way.connect()
            secure = self._trusting().wrap_socket(way.sock, server_hostname=host)
        except BaseException:
            way.close()
            raise
        secure.settimeout(_ANSWER_TIMEOUT)
        return secure

    def _trusting(self) -> ssl.SSLContext:
        if self._context is None:
            made = ssl.create_default_context(cafile=self._trust or None)
            usual = ssl.get_default_verify_paths()
            if not (self._trust or usual.cafile or usual.capath):
                # The interpreter was built for another system, and finds no certificates at its own paths. So
                # load the certificates from the paths of Linux distributions.
                for path in filter(os.path.exists, roots.PLACES):
                    made.load_verify_locations(path)
            made.set_alpn_protocols(["http/1.1"])
            self._context = made
        return self._context
