"""Event streams: a page that is looked at is rendered anew when there is news, and what changed of it is
sent.

Woken by notices; however much news there is, a stream looks once a second, and streams that look at the same
page as the same person share each look.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from trainshed.console import assets
from trainshed.console.events import QUIET, SILENCE, event, next_of
from trainshed.console.rendering import render
from trainshed.console.visits import View, Visit
from trainshed.eventloop.background import joined
from trainshed.wire.status import Refused

_PAUSE: Final = 1.0
"""Seconds between two looks of a stream."""
_SHARE: Final = 4
"""A stream pauses at least so many times as long as its last look took."""


class Look(Struct, frozen=True):
    """A page as it was looked at."""

    view: View
    #: HTML of its parts, by id.
    parts: Mapping[str, str]
    #: Seconds that it took.
    took: float
    #: Number of the last news before it.
    latest: int
    #: Of each part, to see whether it changed.
    digests: Mapping[str, bytes]
    #: What was made of it for streams that know the same.
    told: dict[object, bytes] = field(default_factory=dict[object, bytes])

    def event(self, changed: tuple[str, ...], ordered: tuple[str, ...], first: bool) -> bytes:
        """The event that tells which parts have changed, and which lists have another order."""
        key = (changed, ordered, first)
        if key not in self.told:
            parts = {name: self.parts[name] for name in changed}
            lists = {name: self.view.lists[name] for name in ordered}
            told = {
                "parts": parts,
                "lists": lists,
                "whole": sorted(self.view.whole & set(lists)),
                "first": first,
                "build": assets.build(),
            }
            self.told[key] = event("parts", told)
        return self.told[key]


class Looks(Struct):
    """Looks that several streams share, by what is looked at and by whom."""

    _fresh: dict[str, tuple[float, asyncio.Task[Look]]] = field(
        default_factory=dict[str, tuple[float, asyncio.Task[Look]]]
    )

    async def take(self, key: str, age: float, look: Callable[[], Awaitable[Look]]) -> Look:
        """One that began after this moment of the loop's clock, or a new one."""
        now = asyncio.get_running_loop().time()
        began, task = self._fresh.get(key, (0.0, None))
        if task is None or began < age or (task.done() and task.exception() is not None):
            self._fresh = {
                k: v for k, v in self._fresh.items() if not v[1].done() or v[0] > now - 5
            }

            async def looking() -> Look:
                return await look()

            task = joined(looking())
            self._fresh[key] = now, task
        return await asyncio.shield(task)


async def look_at(page: Callable[[Visit], Awaitable[View]], visit: Visit) -> Look:
    loop = asyncio.get_running_loop()
    began, latest = loop.time(), visit.backend.notices.latest
    view = await page(visit)
    parts = rendered_parts(visit, view)
    digests = {name: _digest(html) for name, html in parts.items()}
    return Look(view, parts, loop.time() - began, latest, digests)


def rendered_parts(visit: Visit, view: View) -> dict[str, str]:
    """HTML by id."""
    common = {"visit": visit, "facts": visit.facts}
    return {
        name: render(part.template, {**common, **part.values, "part_id": name})
        for name, part in view.parts.items()
    }


async def stream(
    page: Callable[[Visit], Awaitable[View]], visit: Visit, looks: Looks, key: str
) -> AsyncGenerator[bytes]:
    """Server-sent events: `parts` with what changed, `gone` when there is nothing to look at any more."""
    loop, news = asyncio.get_running_loop(), visit.backend.notices
    sent: Mapping[str, bytes] = {}
    lists: Mapping[str, Sequence[str]] = {}
    first = True
    yield b"retry: 2000\n\n"
    while True:
        if not visit.is_valid():
            yield event("gone", {"message": "You are signed out.", "signedOut": True})
            return
        try:
            found = await looks.take(key, loop.time() - _PAUSE / 2, lambda: look_at(page, visit))
        except Refused as refused:
            yield event("gone", {"message": str(refused), "signedOut": False})
            return
        changed = tuple(name for name, seen in found.digests.items() if sent.get(name) != seen)
        sent = found.digests
        ordered = tuple(name for name, ids in found.view.lists.items() if lists.get(name) != ids)
        lists = found.view.lists
        if changed or ordered:
            yield found.event(changed, ordered, first)
        first = False
        await asyncio.sleep(max(_PAUSE, _SHARE * found.took))
        subject, latest = found.view.subject, found.latest
        while True:
            if subject is None:
                is_news = await news.wait_for_any(latest, SILENCE)
            else:
                is_news = await news.wait_beyond(subject, latest, SILENCE)
            if is_news or not visit.is_valid():
                break
            yield QUIET


async def merged(
    page: AsyncGenerator[bytes], added: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """What two streams say, as it comes; over with the page's own. What is not taken is not read."""
    coming = {joined(next_of(each)): each for each in (page, added)}
    try:
        while page in coming.values():
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = coming.pop(task)
                said = task.result()
                if said is not None:
                    yield said
                    coming[joined(next_of(source))] = source
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for source in (page, added):
            await source.aclose()


def _digest(html: str) -> bytes:
    return hashlib.blake2b(html.encode("utf-8", "surrogateescape"), digest_size=12).digest()
