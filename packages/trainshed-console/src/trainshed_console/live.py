"""Event streams of pages: while a page is open in a browser, it is rendered again when there is news, and the
parts that changed are sent.

A stream sleeps until the store's notices wake it, and renders its page at most once a second.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from trainshed.wire.status import Refused
from trainshed_console.rendering import build, render
from trainshed_console.visits import View, Visit

SILENCE: Final = 15.0
"""Seconds without an event after which a stream sends a comment, to show that it is alive."""
QUIET: Final = b": quiet\n\n"
"""The comment that is sent then."""
_PAUSE: Final = 1.0
"""Minimum seconds between two looks of a stream."""
_SHARE: Final = 4
"""A stream pauses for at least this many times the duration of its last look."""


def event(name: str, value: object) -> bytes:
    """Return one event, with `value` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


_WHY: Final = "You are signed out, or your roles have changed."
SIGNED_OUT: Final = event("gone", {"message": _WHY, "signedOut": True})
"""All that a stream still says to a visitor who is."""


def rendered_parts(visit: Visit, view: View) -> dict[str, str]:
    common = {"visit": visit, "facts": visit.facts}
    return {
        name: render(part.template, {**common, **part.values, "part_id": name})
        for name, part in view.parts.items()
    }


async def stream(page: Callable[[Visit], Awaitable[View]], visit: Visit) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `parts` with what changed, and at the end `gone`, when the visitor is signed
    out, has other roles, or the page is refused, for example because its job was deleted."""
    loop, news = asyncio.get_running_loop(), visit.backend.notices
    # Digest of each part's HTML, by id.
    sent: Mapping[str, bytes] = {}
    lists: Mapping[str, Sequence[str]] = {}
    yield b"retry: 2000\n\n"
    while True:
        if not visit.is_valid():
            yield SIGNED_OUT
            return
        began, latest = loop.time(), news.latest
        try:
            view = await page(visit)
        except Refused as refused:
            if not visit.is_valid():
                continue  # Its end, above: the refusal is written for who calls the API.
            yield event("gone", {"message": str(refused), "signedOut": False})
            return
        parts = rendered_parts(visit, view)
        took = loop.time() - began
        digests = {name: _digest(html) for name, html in parts.items()}
        changed = {name: html for name, html in parts.items() if sent.get(name) != digests[name]}
        ordered = {name: ids for name, ids in view.lists.items() if lists.get(name) != ids}
        sent, lists = digests, view.lists
        if changed or ordered:
            whole = sorted(view.whole & set(ordered))
            tells = {"parts": changed, "lists": ordered, "whole": whole, "build": build()}
            yield event("parts", tells)
        await asyncio.sleep(max(_PAUSE, _SHARE * took))
        while not await news.wait_beyond(view.subject, latest, SILENCE) and visit.is_valid():
            yield QUIET


def _digest(html: str) -> bytes:
    return hashlib.blake2b(html.encode("utf-8", "surrogateescape"), digest_size=12).digest()
