"""Takes WebSocket calls with a library that is loaded when the first one comes: most services never have one."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.httpd.protocol import Ways


def protocol(ways: "Ways") -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes of a connection that asks to be a WebSocket. `ways`: who counts the connections."""

    def made(**options: Any) -> asyncio.Protocol:
        from trainshed.httpd.sockets import CountedWebSocket

        return CountedWebSocket(ways, **options)

    return made
