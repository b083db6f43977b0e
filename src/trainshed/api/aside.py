"""Large requests are read in a thread of their own, one at a time: everybody else goes on meanwhile.

What they may hold is bounded before (`wire.counts`), for the interpreter's lock lets others in between two steps, not within
one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

LARGE: Final = 16 << 10
"""Bytes of a request from which on it is read aside."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")


async def read(size: int, work: Callable[[], T]) -> T:
    """Do the work that a request of so many bytes makes. `work` blocks, and uses nothing that belongs to the event loop."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)
