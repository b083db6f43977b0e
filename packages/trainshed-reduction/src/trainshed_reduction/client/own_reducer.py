"""A worker's own reducer, where the reducers' bandwidth is too small (hybrid): a thread of the worker's
process, which runs in C nearly all of the time and ends with the worker."""

from __future__ import annotations

import logging
import ssl
import threading
from typing import Optional

from trainshed_reduction import proof, variables
from trainshed_reduction.client.lanes import Address
from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.server import Server
from trainshed_reduction.settings import Settings
from trainshed_reduction.sockets import listen

_LOG = logging.getLogger(__name__)


class OwnReducer:
    """A reducer that serves from its making until `close`."""

    def __init__(self, host: str, settings: Settings, library: Library) -> None:
        """`host`: the worker's own address on its connections to reducers. Raises OSError."""
        self._listener = listen((host, 0))
        self.address: Address = (host, self._listener.getsockname()[1])
        self._server = Server(
            self._listener,
            settings.token,
            library=library,
            outlet=lambda what, value: _LOG.debug("own reducer: %s %s", what, value),
            tls=_shown(settings) if settings.is_secured else None,
        )
        self._thread = threading.Thread(
            target=self._server.run, name="reduction-own-reducer", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        self._thread.join()
        self._listener.close()


def nothing_to_show(settings: Settings, tls: Optional[ssl.SSLContext]) -> str:
    """Return why other workers, who trust the same authority as this one, could not trust this worker's own
    reducer; "" if they could, or without TLS."""
    if tls is None:
        return ""
    if not settings.cert_file and not settings.cert:
        return f"no certificate for a reducer of its own ({variables.CERT_FILE})"
    try:
        fault = proof.distrust(tls, _shown(settings))
    except OSError as error:
        fault = str(error)
    where = settings.cert_file or variables.CERT
    return fault and f"a certificate in {where} that cannot be used: {fault}"


def _shown(settings: Settings) -> ssl.SSLContext:
    """Return the own reducer's TLS context. Raises OSError."""
    return proof.reducer_tls(
        settings.cert_file, settings.key_file, cert=settings.cert, key=settings.key
    )
