"""Polling for conditions without a notification."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

TIMEOUT = 60
Found = TypeVar("Found")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - no notification exists
            await asyncio.sleep(0.01)


async def until_found(find: Callable[[], Awaitable[Found]]) -> Found:
    """Poll until `find` returns a value, and return it."""
    async with asyncio.timeout(TIMEOUT):
        while not (result := await find()):  # noqa: ASYNC110 - no notification exists
            await asyncio.sleep(0.01)
        return result
