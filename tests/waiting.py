"""Looks again and again for what no signal tells of."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE = 60
Found = TypeVar("Found")


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def until_found(look: Callable[[], Awaitable[Found]]) -> Found:
    """What it finds, when it finds something."""
    async with asyncio.timeout(PATIENCE):
        while not (result := await look()):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        return result
