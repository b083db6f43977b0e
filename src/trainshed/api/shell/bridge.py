"""Moves the bytes of one shell over one WebSocket, both ways, until either side has had enough.

Binary messages are what is typed and what is shown. Text messages are JSON: from the client `{"resize": [rows, columns]}`
and `{"end": true}` (there is no more to be typed), to the client `{"exit": status}` at the shell's end (null: it ended with
its replica) or `{"error": text}`.
"""

import asyncio
import contextlib
import json
from typing import Any, Final

from trainshed.api.http import Receive, Send
from trainshed.api.services import Terminal
from trainshed.core.terminals import MOST_ROWS
from trainshed.eventloop.background import joined
from trainshed.wire.json import encode_text

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
REFUSED: Final = 1008


async def bridge(
    receive: Receive, send: Send, terminal: Terminal, idle: float, closing: asyncio.Event
) -> None:
    """`idle`: seconds without a byte either way after which it is hung up, 0 = never. `closing`: the service stops."""
    patience = asyncio.timeout(idle or None)

    def moved() -> None:
        if idle:
            # That it has just run out is found out by whoever waits.
            with contextlib.suppress(RuntimeError):
                patience.reschedule(asyncio.get_running_loop().time() + idle)

    async def show() -> None:
        while data := await terminal.read():
            moved()
            await send({"type": "websocket.send", "bytes": data})

    async def type_() -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            moved()
            if (data := message.get("bytes")) is not None:
                await terminal.write(data)
            else:
                await _obey(terminal, message.get("text") or "")

    async def stop() -> None:
        await closing.wait()

    showing, typing, stopping = map(joined, (show(), type_(), stop()))
    tasks = (showing, typing, stopping)
    try:
        try:
            async with patience:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            text = f"Nothing was typed or shown for {idle / 60:g} minutes: hung up."
            await say(send, {"error": text})
            await hang_up(send, NORMAL)
            return
        if typing.done() or (showing.done() and showing.exception() is not None):
            return  # Whoever typed is gone.
        if showing.done():
            await say(send, {"exit": terminal.status})
            await hang_up(send, NORMAL)
        else:
            await say(send, {"error": "The service stops; the job runs on. Come back later."})
            await hang_up(send, GOING_AWAY)
    finally:
        terminal.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def say(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "text": encode_text(value).decode()})


async def hang_up(send: Send, code: int) -> None:
    await send({"type": "websocket.close", "code": code})


async def _obey(terminal: Terminal, text: str) -> None:
    """What is no order of ours is passed over: a newer page may know more."""
    try:
        order = json.loads(text)
    except ValueError:
        return
    match order:
        case {"resize": [int(rows), int(columns)]}:
            if 0 < rows <= MOST_ROWS and 0 < columns <= MOST_ROWS:
                terminal.resize(rows, columns)
        case {"end": True}:
            await terminal.end_input()
        case _:
            return
