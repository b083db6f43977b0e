"""The TCP port that speaks TLS, for clients that speak nothing else (gsutil), and what it shows them.

The certificate is read when somebody comes, and again when its file has changed: at a service's first start it is made
while this process starts already, and a renewed one counts without a restart.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from pathlib import Path

import uvicorn

_log = logging.getLogger(__name__)


class SecureServer(uvicorn.Server):
    """The server, with one listener more, which speaks TLS."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket | None, chain: Path, key: Path
    ) -> None:
        """`listener`: None = there is none. `chain`, `key`: PEM files, which may come to be later."""
        super().__init__(config)
        self._listener = listener
        self._certificate = Certificate(chain, key)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._listener is None or self.should_exit:
            return
        protocol = functools.partial(
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        self.servers.append(
            await asyncio.get_running_loop().create_server(
                protocol,
                sock=self._listener,
                ssl=self._certificate.context(),
                backlog=self.config.backlog,
            )
        )


class Certificate:
    """What is shown to clients. Raises nothing: without a readable one they are turned away, and the log says why."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain = chain
        self._key = key
        self._loaded: ssl.SSLContext | None = None
        self._made = 0

    def context(self) -> ssl.SSLContext:
        """For a listener: chooses at each handshake."""
        outer = _new_context()
        outer.sni_callback = self._choose
        return outer

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, outer: ssl.SSLContext
    ) -> int | None:
        try:
            made = self._chain.stat().st_mtime_ns
            if self._loaded is None or made != self._made:
                fresh = _new_context()
                fresh.load_cert_chain(self._chain, self._key)
                self._loaded, self._made = fresh, made
            connection.context = self._loaded
        except OSError as failure:
            _log.warning("no certificate for a client that speaks TLS: %s", failure)
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None


def _new_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.set_alpn_protocols(["http/1.1"])
    return made
