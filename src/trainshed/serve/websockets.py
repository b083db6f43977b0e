"""Takes WebSocket calls with a library that is loaded when the first one comes: most services never have one."""

import asyncio
from typing import Any


def protocol(**options: Any) -> asyncio.Protocol:
    """What uvicorn makes of a connection that asks to be a WebSocket."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(**options)
