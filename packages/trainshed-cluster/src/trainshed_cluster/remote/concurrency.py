"""Runs coroutines concurrently."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from trainshed.eventloop.background import joined


async def run_all_or_cancel(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently, and wait until they have finished. If one fails, cancel the others,
    wait until they have ended, and raise the first exception."""
    tasks = [joined(item) for item in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [item for item in outcomes if isinstance(item, BaseException)]
    for failure in sorted(failures, key=lambda item: isinstance(item, asyncio.CancelledError)):
        raise failure
