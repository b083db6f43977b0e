"""Keeps a zygote at hand: hands requests over, starts a new one when the old one is dead or hangs.

What a hung one was given goes to the new one exactly once: when it is killed, the handles of the requests
that it has not read are closed, which their callers see; what it has begun lives on, and the slot's lock
refuses a second start.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from trainshed.engines.local import handles, zygotes
from trainshed.engines.port import EngineUnavailable, LevelUnavailable
from trainshed.eventloop.background import begin
from trainshed.replica import protocol

log = logging.getLogger(__name__)

_PROBE_SECONDS = 30.0
_LONGEST_SWEEP = 3600.0
"""Seconds after which nobody waits for the trash to be emptied: the next one who empties it begins anew."""
_PROBES = 3
"""How often somebody may be killed who tries what this machine allows."""

STOCK, _BUSY_STOCK = 2, 6
"""Idle shims, and idle shims while programs are being started now and then: so many start without waiting for
forks. Each takes two megabytes with its guardian."""


class Spawner:
    """`handle`: a zygote that already runs, or None."""

    def __init__(self, handle: zygotes.ZygoteHandle | None) -> None:
        self._handle = handle
        self._limits: handles.Limits | None = None
        self._level = ""
        self._lock = asyncio.Lock()
        self._proving: asyncio.Task[None] | None = None
        self._is_unproven = False

    async def request(self, message: protocol.Message, connection: socket.socket) -> int:
        """Have a shim forked with `connection` as its own; returns the process id of the zygote. Raises
        EngineUnavailable.

        Returning means handed over, not forked: if the zygote dies first, `connection`'s other end is closed.
        """
        for _ in range(3):
            handle = self._handle or await self._replace(None)
            try:
                await handle.request(message, connection.fileno())
            except OSError:
                await self._replace(handle)
            else:
                self._prove()
                return handle.pid
        raise EngineUnavailable(
            "the process that starts programs ends as soon as it is started; run `trainshed doctor`"
        )

    async def ready(self, limits: handles.Limits) -> None:
        """Have a zygote, so that the first launch does not wait for one. `limits`: of file handles, for
        programs."""
        self._limits = limits
        if self._handle is not None:
            handles.impose(self._handle.pid, limits)
        if self._handle is None:
            await self._replace(None)

    async def renew(self, zygote: int) -> None:
        """Kill the zygote of that process id, which does not do what it is asked to, and start another;
        nothing if that was done already."""
        if (handle := self._handle) is not None and handle.pid == zygote:
            await self._replace(handle)

    def _prove(self) -> None:
        """Have it found out, beside everything else, whether the zygote takes up what it was given."""
        self._is_unproven = True
        if self._proving is None or self._proving.done():
            self._proving = begin(self._ping(), "asking the zygote for a sign of life")

    async def _ping(self) -> None:
        while self._is_unproven and (handle := self._handle) is not None:
            self._is_unproven = False
            try:
                await handle.ping()
            except TimeoutError:
                log.warning(
                    "the zygote (process %d) hangs; it is killed, and another started", handle.pid
                )
                await self._replace(handle)
            except OSError:
                await self._replace(handle)

    async def probe(self, directory: Path, levels: Sequence[str]) -> tuple[str, dict[str, str]]:
        """The first of these sandbox levels (`protocol.LEVEL_*`) that works on this machine, "" = none; and
        why those before it do not. Raises LevelUnavailable: that could not be found out."""
        for _ in range(_PROBES):
            if answer := await self._try_levels(directory, levels):
                found = json.loads(answer)
                if "failed" in found:
                    raise LevelUnavailable(found["failed"])
                return found["level"], found["refused"]
        raise LevelUnavailable("isolation cannot be probed: whoever tried it was killed")

    async def _try_levels(self, directory: Path, levels: Sequence[str]) -> bytes:
        """The answer of who tried; none if it was killed, most likely with its zygote."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self.request({"probe": str(directory), "levels": list(levels)}, theirs)
        ours.setblocking(False)
        with ours, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_SECONDS):
                return await asyncio.get_running_loop().sock_recv(ours, 4096)
        return b""

    async def stock(self, level: str) -> None:
        """Have some shims wait for programs to be started at that level; a later zygote's as well."""
        self._level = level
        handle = self._handle or await self._replace(None)
        await self._ask_for_stock(handle)

    async def _ask_for_stock(self, handle: zygotes.ZygoteHandle) -> None:
        # Nobody waits for an answer, but a line always comes with a handle.
        nothing = os.open(os.devnull, os.O_RDONLY)
        wish: protocol.Message = {"stock": STOCK, "busy": _BUSY_STOCK, "level": self._level}
        try:
            with contextlib.suppress(OSError):
                await handle.request(wish, nothing)
        finally:
            os.close(nothing)

    async def sweep(self, trash: Path) -> None:
        """Have everything in a directory deleted, at the lowest priority; returns when that is done, or
        nobody does it."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self.request({"sweep": str(trash)}, theirs)
        ours.setblocking(False)
        with ours, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_SWEEP):
                await asyncio.get_running_loop().sock_recv(ours, 1)

    async def close(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
        if self._handle is not None:
            await self._handle.dismiss()
            self._handle = None

    async def _replace(self, dead: zygotes.ZygoteHandle | None) -> zygotes.ZygoteHandle:
        async with self._lock:
            if self._handle is None or self._handle is dead:
                self._handle = None
                if dead is not None:
                    await dead.dismiss(at_once=True)
                try:
                    self._handle = await asyncio.to_thread(zygotes.start)
                except OSError as error:
                    raise EngineUnavailable(
                        f"the process that starts programs cannot be started ({error}); free memory or "
                        "processes"
                    ) from error
                if self._limits is not None:
                    handles.impose(self._handle.pid, self._limits)
                if self._level:
                    await self._ask_for_stock(self._handle)
            return self._handle
