"""The HTTP server of the service's processes: uvicorn, set up the same way in each."""

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
"""Bytes of a message on a WebSocket."""


def server_config(
    application: Application,
    protocol: type[GuardedProtocol],
    *,
    grace: int,
    websockets: ConnectionGroups | None = None,
) -> Config:
    """`grace`: seconds that requests have left when it stops.
    `websockets`: who counts WebSockets; without it there are none."""
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
    """Uvicorn's protocol for WebSockets, whose library is loaded with the first call: most services never
    have one."""

    def made(**options: Any) -> asyncio.Protocol:
        from trainshed.httpd.sockets import CountedWebSocket

        return CountedWebSocket(groups, **options)

    return made
