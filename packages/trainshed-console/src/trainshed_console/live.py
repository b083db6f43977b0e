"""Event streams of open pages. After changes, a stream renders its page again and sends the changed parts. A
stream waits for notifications from the store, and renders its page at most once per second."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from trainshed.wire.status import CallRejected
from trainshed_console.rendering import assets_digest, render
from trainshed_console.views import View, Visit

KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds without an event after which a stream sends a comment."""
KEEPALIVE: Final = b": quiet\n\n"
"""The comment of an idle stream."""
_MIN_INTERVAL: Final = 1.0
"""Minimum seconds between two renderings of a stream."""
_IDLE_FACTOR: Final = 4
"""After each rendering, a stream sleeps for at least this factor times the duration of the rendering."""


def event(name: str, value: object) -> bytes:
    """Return one event, with `value` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


_WHY: Final = "You are signed out, or your roles have changed."
SIGNED_OUT: Final = event("gone", {"message": _WHY, "signedOut": True})
"""The last event of a stream whose visitor has been signed out."""


def rendered_parts(visit: Visit, view: View) -> dict[str, str]:
    common = {"visit": visit, "facts": visit.facts}
    return {
        name: render(part.template, {**common, **part.values, "part_id": name})
        for name, part in view.parts.items()
    }


async def stream(page: Callable[[Visit], Awaitable[View]], visit: Visit) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `parts` with the changed parts of the page, and finally `gone`.

    A stream ends when the visitor is signed out or has other roles. It also ends when the page fails, for
    example because its job was deleted.
    """
    loop, news = asyncio.get_running_loop(), visit.backend.notices
    # Digest of each part's HTML, by id.
    sent_digests: Mapping[str, bytes] = {}
    lists: Mapping[str, Sequence[str]] = {}
    yield b"retry: 2000\n\n"
    while True:
        if not visit.is_valid():
            yield SIGNED_OUT
            return
        start, latest = loop.time(), news.latest
        try:
            view = await page(visit)
        except CallRejected as refused:
            if not visit.is_valid():
                # The next iteration yields SIGNED_OUT. The text of this error is for callers of the API, not
                # for visitors.
                continue
            yield event("gone", {"message": str(refused), "signedOut": False})
            return
        parts = rendered_parts(visit, view)
        duration = loop.time() - start
        digests = {name: _digest(html) for name, html in parts.items()}
        changed_parts = {
            name: html for name, html in parts.items() if sent_digests.get(name) != digests[name]
        }
        changed_lists = {name: ids for name, ids in view.lists.items() if lists.get(name) != ids}
        sent_digests, lists = digests, view.lists
        if changed_parts or changed_lists:
            whole = sorted(view.whole & set(changed_lists))
            message = {
                "parts": changed_parts,
                "lists": changed_lists,
                "whole": whole,
                "build": assets_digest(),
            }
            yield event("parts", message)
        await asyncio.sleep(max(_MIN_INTERVAL, _IDLE_FACTOR * duration))
        while not await news.wait_beyond(view.subject, latest, KEEPALIVE_INTERVAL) and visit.is_valid():
            yield KEEPALIVE


def _digest(html: str) -> bytes:
    return hashlib.blake2b(html.encode("utf-8", "surrogateescape"), digest_size=12).digest()
