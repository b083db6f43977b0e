"""All viewers: a limited number at once, each started by the first request for it and ended when idle.

Runs on the event loop only. A viewer that was ended is started again by the next request for it: it has no
state that is worth keeping.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from typing import Final, Protocol

from msgspec import Struct, field

from trainshed.core.errors import Unavailable
from trainshed.eventloop.background import Crew, begin, joined
from trainshed.httpd.messages import Request, Response

log = logging.getLogger(__name__)


class Viewer(Protocol):
    """A viewer that runs (`viewers.process`)."""

    @property
    def is_alive(self) -> bool: ...

    async def ready(self) -> None:
        """Wait until it serves. Raises if it cannot."""
        ...

    async def forward(
        self, request: Request, closing: asyncio.Event, more: list[tuple[bytes, bytes]]
    ) -> Response: ...

    async def ended(self) -> str:
        """Wait for its end; return why it ended, "" if it was asked to."""
        ...

    async def close(self) -> None: ...


Start = Callable[[], Awaitable[Viewer]]


class _Entry(Struct, eq=False):
    name: str
    #: Starts it and waits until it serves.
    starting: asyncio.Task[Viewer]
    #: When it was last asked for, by the loop's clock.
    used: float
    #: Number of requests that it serves or that wait for its start.
    busy: int = 0
    #: Identifies what it was started to show.
    version: Hashable = None
    alarm: asyncio.TimerHandle | None = field(default=None)

    @property
    def viewer(self) -> Viewer | None:
        """The viewer that serves; None: none does yet, or none could be started."""
        done = self.starting.done() and not self.starting.cancelled()
        return self.starting.result() if done and self.starting.exception() is None else None

    @property
    def is_over(self) -> bool:
        """Whether it could not be started, or has ended by itself."""
        return self.starting.done() and (self.viewer is None or not self.viewer.is_alive)


class ViewerPool:
    """The running viewers. `most`: limit at once. `idle`: seconds without a request after which a viewer is
    ended; 0 = never."""

    def __init__(self, most: int, idle: float) -> None:
        self._most: Final = most
        self._idle: Final = idle
        self._entries: dict[str, _Entry] = {}
        self._ending = Crew()

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, name: str) -> bool:
        """Whether a viewer of that name is there, so that `viewer` starts none."""
        entry = self._entries.get(name)
        return entry is not None and not entry.is_over

    @contextlib.asynccontextmanager
    async def viewer(
        self, name: str, start: Start, version: Hashable = None, *, renew: bool = False
    ) -> AsyncGenerator[Viewer]:
        """Yield the viewer of that name for as long as it is used; start one if there is none. `version`:
        identifies what a new one shows; `renew`: end one of another version first. Raises Unavailable: all
        that may run are in use; and what `start` and `ready` raise."""
        entry = self._entries.get(name)
        is_stale = renew and entry is not None and entry.version != version
        if entry is not None and (entry.is_over or is_stale):
            self._drop(entry)
            entry = None
        if entry is None:
            self._make_room()
            entry = self._entries[name] = _Entry(
                name, joined(self._started(name, start)), self._now(), version=version
            )
        entry.busy += 1
        try:
            yield await asyncio.shield(entry.starting)
        except asyncio.CancelledError:
            if entry.starting.cancelled():
                raise Unavailable(
                    "TensorBoard was ended while it started; open it again."
                ) from None
            raise
        finally:
            entry.busy -= 1
            entry.used = self._now()
            if entry.is_over:
                self._drop(entry)
            elif self._idle and entry.alarm is None:
                self._set_alarm(entry)

    def end(self, wanted: Callable[[str], bool]) -> None:
        """End the viewers whose names are `wanted`, without waiting for that."""
        for entry in [each for each in self._entries.values() if wanted(each.name)]:
            self._drop(entry)

    async def close(self) -> None:
        """End all of them, and wait until they are gone."""
        self.end(lambda name: True)
        await self._ending.settled()

    async def _started(self, name: str, start: Start) -> Viewer:
        viewer = await start()
        log.info("viewer %s: started", name)
        begin(self._log_end(name, viewer), f"viewer {name}: waiting for its end")
        try:
            await viewer.ready()
        except BaseException:
            await viewer.close()
            raise
        return viewer

    async def _log_end(self, name: str, viewer: Viewer) -> None:
        if why := await viewer.ended():
            log.warning("viewer %s: ended: %s", name, why)
        else:
            log.info("viewer %s: ended", name)

    def _make_room(self) -> None:
        """End the least recently used viewer, if the limit is reached. Raises Unavailable: all are in use."""
        if len(self._entries) < self._most:
            return
        unused = [each for each in self._entries.values() if not each.busy]
        if not unused:
            raise Unavailable(
                f"{self._most} TensorBoards are at work, and no more may run at once (setting "
                "tensorboards); close one, or try again in a moment."
            )
        self._drop(min(unused, key=lambda each: each.used))

    def _drop(self, entry: _Entry) -> None:
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]
        if entry.alarm is not None:
            entry.alarm.cancel()
        entry.starting.cancel()
        self._ending.begin(_gone(entry), f"viewer {entry.name}: ending")

    def _set_alarm(self, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        entry.alarm = loop.call_at(entry.used + self._idle, self._is_idle, entry)

    def _is_idle(self, entry: _Entry) -> None:
        entry.alarm = None
        if entry.busy:
            return  # The end of its request sets another alarm.
        if self._now() - entry.used >= self._idle:
            self._drop(entry)
        else:
            self._set_alarm(entry)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _gone(entry: _Entry) -> None:
    await asyncio.gather(entry.starting, return_exceptions=True)
    if (viewer := entry.viewer) is not None:
        await viewer.close()
