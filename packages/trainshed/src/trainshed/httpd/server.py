"""Configures uvicorn, the HTTP server of the service's processes, in the same way for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.config import Config

from trainshed.httpd.messages import Application
from trainshed.httpd.protocol import ConnectionGroups, GuardedProtocol

_KEEP_ALIVE: Final = 75
"""Seconds without a request after which a connection is closed."""
_MOST_MESSAGE: Final = 1 << 20
"""Bytes that a WebSocket message may have."""


def server_config(
    application: Application,
    protocol: type[GuardedProtocol],
    *,
    grace: int,
    websockets: ConnectionGroups | None = None,
) -> Config:
    """Returns uvicorn's configuration. `grace`: seconds that requests have to finish when the server stops.
    `websockets`: the counters of WebSockets; None = they are not served."""
    return Config(
        cast("Any", application),
        http=protocol,
        ws=cast("Any", _counted(websockets)) if websockets is not None else "none",
        ws_max_size=_MOST_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )


def _counted(groups: ConnectionGroups) -> Callable[..., asyncio.Protocol]:
    """Returns uvicorn's protocol for WebSockets. Their library is loaded with the first connection: most
    services never have one."""

    def made(**options: Any) -> asyncio.Protocol:
        from trainshed.httpd.sockets import CountedWebSocket

        return CountedWebSocket(groups, **options)

    return made
