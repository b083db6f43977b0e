"""The service's side of lines that a program says to it instead of printing them: its shim writes them into
its log."""

import asyncio
from collections.abc import Iterator, Sequence

from trainshed.engines.local.link import connect
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineUnavailable
from trainshed.replica import protocol

_PATIENCE = 10.0
"""Seconds that the shim may take for all of them."""
_AT_ONCE = 32 << 10
"""Characters of one order, unless a single line has more: the shim does nothing else meanwhile."""


async def dictate(slot_handle: SlotHandle | None, lines: Sequence[str]) -> None:
    """Returns when they stand in the log. Raises EngineUnavailable: the replica is over, or its shim does not
    answer."""
    if slot_handle is None or not slot_handle.is_live:
        raise EngineUnavailable("the replica is over")
    try:
        connection = connect(slot_handle.directory)
        with connection:
            async with asyncio.timeout(_PATIENCE):
                for order in _orders(lines):
                    await asyncio.get_running_loop().sock_sendall(
                        connection, protocol.encode(order)
                    )
                written, answers = 0, protocol.Lines()
                while written < len(lines):
                    data = await asyncio.get_running_loop().sock_recv(connection, 4096)
                    if not data:
                        raise EngineUnavailable("the replica has ended in this moment")
                    for message in answers.feed(data):
                        if message["e"] == "refused":
                            raise EngineUnavailable(message["cause"])
                        written += message["n"] if message["e"] == "written" else 0
    except OSError as failure:  # A timeout is one as well.
        raise EngineUnavailable(f"its shim does not listen just now ({failure!r})") from failure


def _orders(lines: Sequence[str]) -> Iterator[protocol.Message]:
    batch: list[str] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > _AT_ONCE:
            yield {"o": "write", "lines": batch}
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield {"o": "write", "lines": batch}
