"""The viewers of a service. This module finds the directories of a view, starts its TensorBoard, forwards
requests to it, and stops it when it is idle.

The Python environment of TensorBoard (the runtime family `tensorboard`) is built when it is first used.
Viewers are stateless: after a viewer was stopped, the next request starts it again.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.runtime import RuntimeRefusal
from trainshed.eventloop.background import Crew, begin, joined, wait_shielded
from trainshed.httpd.messages import Lapse, Request, Response
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.families import TENSORBOARD
from trainshed.runtimes.port import BuildFailed, PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes
from trainshed.summaries.directories import LogDirectory, ShownDirectory
from trainshed_tracking.viewers.process import ViewerProcess, start

log = logging.getLogger(__name__)

Report = Callable[[str], None]
Find = Callable[[LogDirectory], ShownDirectory | None]
"""Finds a directory on this disk. Returns None if the directory does not exist, or if its project may not
read it. Blocks. Raises FailedPrecondition if the directory is on another machine."""
Start = Callable[[], Awaitable[ViewerProcess]]


class _Entry(Struct, eq=False):
    name: str
    #: Starts the viewer, and waits until it responds to requests.
    starting: asyncio.Task[ViewerProcess]
    #: Identifies the directories that the viewer shows.
    version: Hashable
    #: Number of current requests, including requests that wait for the start.
    busy: int = 0
    #: The timer that stops the viewer if it is idle for too long; None = no timer is running.
    alarm: asyncio.TimerHandle | None = None

    @property
    def viewer(self) -> ViewerProcess | None:
        """The running viewer, or None before its start or after a failed start."""
        done = self.starting.done() and not self.starting.cancelled()
        return self.starting.result() if done and self.starting.exception() is None else None

    @property
    def is_over(self) -> bool:
        """Whether the viewer failed to start, or has exited."""
        return self.starting.done() and (self.viewer is None or not self.viewer.is_alive)


class ViewerPool:
    """The running viewers. The first request for a viewer starts it. Runs only on the event loop.
    `max_viewers`: maximum number of running viewers. `idle`: seconds without a request after which a viewer
    is stopped."""

    def __init__(self, max_viewers: int, idle: float = 600.0) -> None:
        self._max_viewers: Final = max_viewers
        self._idle: Final = idle
        #: Viewers by name. The least recently used one is first.
        self._entries: dict[str, _Entry] = {}
        self._ending = Crew()

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, name: str) -> bool:
        """Whether a viewer with that name is running or starting. If so, `viewer` uses it and starts no new
        one."""
        entry = self._entries.get(name)
        return entry is not None and not entry.is_over

    @contextlib.asynccontextmanager
    async def viewer(
        self, name: str, start: Start, version: Hashable = None, *, renew: bool = False
    ) -> AsyncGenerator[ViewerProcess]:
        """Yield the viewer with that name. Start it if it does not run. `version`: identifies the directories
        that the viewer should show. `renew`: replace the running viewer if it has another version. Raises
        Unavailable if the maximum number of viewers is in use, and the errors of `start` and `ready`."""
        entry = self._entries.get(name)
        if entry is not None and (entry.is_over or (renew and entry.version != version)):
            self._drop(entry)
            entry = None
        if entry is None:
            self._make_room()
            entry = _Entry(name, joined(self._start_viewer(name, start)), version)
        self._entries.pop(entry.name, None)
        self._entries[entry.name] = entry
        entry.busy += 1
        if entry.alarm is not None:
            entry.alarm.cancel()
        try:
            yield await wait_shielded(entry.starting)
        except asyncio.CancelledError:
            if entry.starting.cancelled():
                raise Unavailable("TensorBoard was stopped while it started. Open it again.") from None
            raise
        finally:
            self._leave(entry)

    def end(self, wanted: Callable[[str], bool]) -> None:
        """Stop all viewers for whose names `wanted` returns true. Do not wait."""
        for entry in [entry for entry in self._entries.values() if wanted(entry.name)]:
            self._drop(entry)

    async def close(self) -> None:
        """Stop all viewers, and wait until they have ended."""
        self.end(lambda name: True)
        await self._ending.wait()

    async def _start_viewer(self, name: str, start: Start) -> ViewerProcess:
        viewer = await start()
        log.info("viewer %s: started", name)
        begin(_log_end(name, viewer), f"viewer {name}: waiting for its end")
        try:
            await viewer.ready()
        except BaseException:
            await viewer.close()
            raise
        return viewer

    def _make_room(self) -> None:
        """If the maximum number of viewers run, stop the least recently used viewer without a request. Raises
        Unavailable if all have requests."""
        if len(self._entries) < self._max_viewers:
            return
        unused = next((entry for entry in self._entries.values() if not entry.busy), None)
        if unused is None:
            raise Unavailable(
                f"{self._max_viewers} TensorBoards are in use, which is the maximum. Close one, or "
                "try again in a moment."
            )
        self._drop(unused)

    def _leave(self, entry: _Entry) -> None:
        entry.busy -= 1
        if self._entries.get(entry.name) is not entry:
            return
        if entry.is_over:
            self._drop(entry)
            return
        # Move the entry to the end of the dict, as the most recently used one.
        self._entries[entry.name] = self._entries.pop(entry.name)
        if self._idle and not entry.busy:
            entry.alarm = asyncio.get_running_loop().call_later(self._idle, self._drop, entry)

    def _drop(self, entry: _Entry) -> None:
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]
        if entry.alarm is not None:
            entry.alarm.cancel()
        entry.starting.cancel()
        self._ending.begin(_close_viewer(entry), f"viewer {entry.name}: ending")


async def _log_end(name: str, viewer: ViewerProcess) -> None:
    if why := await viewer.wait_ended():
        log.warning("viewer %s: ended: %s", name, why)
    else:
        log.info("viewer %s: ended", name)


async def _close_viewer(entry: _Entry) -> None:
    await asyncio.gather(entry.starting, return_exceptions=True)
    if (viewer := entry.viewer) is not None:
        await viewer.close()


class LocalViewers:
    """Implements the API's `Viewers` on this machine. `root`: the directory for the viewers' files. `terms`:
    returns the sandbox terms of viewers. It is called in threads. If it raises BuildFailed, callers receive
    FailedPrecondition."""

    def __init__(
        self,
        root: Path,
        runtimes: LocalRuntimes,
        find: Find,
        terms: Callable[[], InstallationTerms],
        *,
        pool: ViewerPool,
        closing: asyncio.Event,
    ) -> None:
        self._root = root
        self._runtimes = runtimes
        self._find = find
        self._terms = terms
        self._pool = pool
        self._closing = closing
        self._started = 0

    async def has_files(self, directories: Sequence[LogDirectory]) -> bool:
        return bool(await asyncio.to_thread(self._find_all, directories))

    async def open(self, name: str, directories: Sequence[LogDirectory], report: Report) -> None:
        runtime = await self._runtime(report)
        report("Starting TensorBoard.")
        shown = await asyncio.to_thread(self._existing_directories, directories)
        starting = partial(self._start, name, shown, runtime)
        async with self._pool.viewer(name, starting, tuple(shown), renew=True):
            pass

    async def forward(
        self, name: str, directories: Sequence[LogDirectory], request: Request, lapse: Lapse
    ) -> Response:
        runtime = await self._runtime(lambda line: None)
        # Show the current directories if the user loads or reloads the page. All other requests come from a
        # loaded page, and use the running viewer.
        renew = request.path == "/"
        shown: Sequence[ShownDirectory] = ()
        if renew or not self._pool.has(name):
            shown = await asyncio.to_thread(self._existing_directories, directories)
        starting = partial(self._start, name, shown, runtime)
        async with self._pool.viewer(name, starting, tuple(shown), renew=renew) as viewer:
            return await viewer.forward(request, self._closing, lapse)

    def end(self, wanted: Callable[[str], bool]) -> None:
        self._pool.end(wanted)

    async def close(self) -> None:
        """Stop all viewers, and wait until they have ended."""
        await self._pool.close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _runtime(self, report: Report) -> PreparedRuntime:
        """Return TensorBoard's environment. Build it if necessary. Raises FailedPrecondition."""
        choice = self._runtimes.catalog.for_family(TENSORBOARD)
        if isinstance(choice, RuntimeRefusal):
            raise FailedPrecondition(choice.reason)
        if ready := self._runtimes.ready(choice, ()):
            return ready
        report("Installing TensorBoard once for all jobs. This takes some seconds.")
        loop = asyncio.get_running_loop()
        try:
            return await self._runtimes.prepare(choice, (), lambda line: _pass_line(loop, report, line))
        except BuildFailed as failure:
            raise FailedPrecondition(
                f"TensorBoard cannot be installed here: {failure} If this machine has no package index, run "
                f"`trainshed runtimes build {TENSORBOARD}` on a machine that has one, with the same "
                "$TRAINSHED_CACHE. Or copy the event files to another machine and run `tensorboard "
                "--logdir DIRECTORY` there."
            ) from None

    async def _start(
        self, name: str, shown: Sequence[ShownDirectory], runtime: PreparedRuntime
    ) -> ViewerProcess:
        terms = await asyncio.to_thread(self._known_terms)
        # Use a new directory for each start, because the previous viewer may still be running. Shorten the
        # name, because a file name is limited to 255 bytes.
        self._started += 1
        workspace = self._root / f"{name[:60]}.{self._started}"
        return await start(workspace, shown, runtime, terms)

    def _existing_directories(self, directories: Sequence[LogDirectory]) -> Sequence[ShownDirectory]:
        """Return the directories that exist. Raises FailedPrecondition if none exists."""
        if not (shown := self._find_all(directories)):
            places = ", ".join(directory.uri for directory in directories) or "any bucket"
            raise FailedPrecondition(
                f"There are no event files in {places} yet. Programs write them to "
                "$AIP_TENSORBOARD_LOG_DIR (custom jobs with a base output directory) or below --job-dir."
            )
        return shown

    def _known_terms(self) -> InstallationTerms:
        if not self._started:
            # Before the first start, remove files that a killed service may have left.
            shutil.rmtree(self._root, ignore_errors=True)
        try:
            return self._terms()
        except BuildFailed as failure:
            raise FailedPrecondition(str(failure)) from None

    def _find_all(self, directories: Sequence[LogDirectory]) -> list[ShownDirectory]:
        return [shown for directory in directories if (shown := self._find(directory)) is not None]


def _pass_line(loop: asyncio.AbstractEventLoop, report: Report, line: str) -> None:
    """Pass a line to `report` on the event loop. Called from a thread. If the loop has already been closed,
    the line is dropped."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(report, line)
