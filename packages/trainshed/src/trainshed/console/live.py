"""Event streams of pages: while a page is open in a browser, it is rendered again when there is news, and the
parts that changed are sent.

A stream sleeps until the store's notices wake it. However much news there is, it renders its page at most
once a second, and all streams of one person on the same page share each look (one rendering).
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from trainshed.console.rendering import build, render
from trainshed.console.visits import View, Visit
from trainshed.eventloop.background import joined, outliving
from trainshed.wire.status import Refused

SILENCE: Final = 15.0
"""Seconds without an event after which a stream sends a comment, to show that it is alive."""
QUIET: Final = b": quiet\n\n"
"""The comment that is sent then."""
_PAUSE: Final = 1.0
"""Minimum seconds between two looks of a stream."""
_SHARE: Final = 4
"""A stream pauses for at least this many times the duration of its last look."""


async def next_of(source: AsyncGenerator[bytes]) -> bytes | None:
    """Return the next item of a stream; None = it has ended."""
    return await anext(source, None)


def event(name: str, value: object) -> bytes:
    """Return one event, with `value` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


class Look(Struct, frozen=True):
    """A page as it was at one moment: its view and the HTML of its parts."""

    view: View
    #: HTML of its parts, by id.
    parts: Mapping[str, str]
    #: Seconds that it took to make.
    took: float
    #: Number of the last news before it was made (`store.notices`).
    latest: int
    #: Digest of each part's HTML, by id, to see whether it changed.
    digests: Mapping[str, bytes]
    #: Events that were made from it, by what they tell: streams that have sent the same share one.
    sent: dict[object, bytes] = field(default_factory=dict[object, bytes])

    def event(self, changed: tuple[str, ...], ordered: tuple[str, ...], first: bool) -> bytes:
        """Return the event `parts` with the HTML of the changed parts, and with the ids in the lists that
        changed. `first`: the stream's first event."""
        key = (changed, ordered, first)
        if key not in self.sent:
            parts = {name: self.parts[name] for name in changed}
            lists = {name: self.view.lists[name] for name in ordered}
            sent = {
                "parts": parts,
                "lists": lists,
                "whole": sorted(self.view.whole & set(lists)),
                "first": first,
                "build": build(),
            }
            self.sent[key] = event("parts", sent)
        return self.sent[key]


class Looks(Struct):
    """The looks that several streams share, by a key of page and person."""

    _fresh: dict[str, tuple[float, asyncio.Task[Look]]] = field(
        default_factory=dict[str, tuple[float, asyncio.Task[Look]]]
    )

    async def take(self, key: str, age: float, look: Callable[[], Awaitable[Look]]) -> Look:
        """Return the last look of the key if it began at `age` or later (loop time), else one that `look`
        makes now. A look that several callers wait for is made once, even if some are cancelled."""
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
        return await outliving(task)


async def look_at(page: Callable[[Visit], Awaitable[View]], visit: Visit) -> Look:
    """Render a page and its parts. Raises Refused."""
    loop = asyncio.get_running_loop()
    began, latest = loop.time(), visit.backend.notices.latest
    view = await page(visit)
    parts = rendered_parts(visit, view)
    texts = ((name, html.encode("utf-8", "surrogateescape")) for name, html in parts.items())
    digests = {name: hashlib.blake2b(text, digest_size=12).digest() for name, text in texts}
    return Look(view, parts, loop.time() - began, latest, digests)


def rendered_parts(visit: Visit, view: View) -> dict[str, str]:
    """Return the HTML of a view's parts, by id."""
    common = {"visit": visit, "facts": visit.facts}
    return {
        name: render(part.template, {**common, **part.values, "part_id": name})
        for name, part in view.parts.items()
    }


async def stream(
    page: Callable[[Visit], Awaitable[View]], visit: Visit, looks: Looks, key: str
) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `parts` with what changed, and at the end `gone`, when the visitor is signed
    out, has other roles, or the page is refused, for example because its job was deleted. `key`: equal for
    streams that may share looks."""
    loop, news = asyncio.get_running_loop(), visit.backend.notices
    sent: Mapping[str, bytes] = {}
    lists: Mapping[str, Sequence[str]] = {}
    first = True
    yield b"retry: 2000\n\n"
    while True:
        if not visit.is_valid():
            message = "You are signed out, or your roles have changed."
            yield event("gone", {"message": message, "signedOut": True})
            return
        try:
            look = await looks.take(key, loop.time() - _PAUSE / 2, lambda: look_at(page, visit))
        except Refused as refused:
            yield event("gone", {"message": str(refused), "signedOut": False})
            return
        changed = tuple(name for name, seen in look.digests.items() if sent.get(name) != seen)
        sent = look.digests
        ordered = tuple(name for name, ids in look.view.lists.items() if lists.get(name) != ids)
        lists = look.view.lists
        if changed or ordered:
            yield look.event(changed, ordered, first)
        first = False
        await asyncio.sleep(max(_PAUSE, _SHARE * look.took))
        subject, latest = look.view.subject, look.latest
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
    """Yield the events of two streams as they come, until the page's own ends. At most one event of each is
    read before it is asked for. Closes both streams."""
    coming = {joined(next_of(stream)): stream for stream in (page, added)}
    try:
        while page in coming.values():
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = coming.pop(task)
                part = task.result()
                if part is not None:
                    yield part
                    coming[joined(next_of(source))] = source
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for source in (page, added):
            await source.aclose()
