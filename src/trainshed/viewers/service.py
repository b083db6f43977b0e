"""The viewers of a service: finds the directories of a view, starts the TensorBoard that shows them, and
forwards requests to it.

The environment is the family `tensorboard` of the runtimes, built at the first use.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal
from trainshed.httpd.messages import Request, Response
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.families import TENSORBOARD
from trainshed.runtimes.port import BuildFailed, PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes
from trainshed.summaries.places import LogDirectory
from trainshed.viewers.pool import Viewer, ViewerPool
from trainshed.viewers.process import ShownDirectory, ViewerFailed, start

Say = Callable[[str], None]
Find = Callable[[LogDirectory], ShownDirectory | None]
"""Finds a directory on this disk; None: it does not exist, or its project may not read it. Blocks. Raises
FailedPrecondition: it is elsewhere."""


class LocalViewers:
    """The API's `Viewers` on this machine. `root`: a directory of its own. `terms`: returns the terms on
    which viewers run; called in threads; its BuildFailed is reported to callers."""

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
        """Do as the protocol says."""
        return bool(await asyncio.to_thread(self._found, directories))

    async def open(
        self, name: str, prefix: str, directories: Sequence[LogDirectory], say: Say
    ) -> None:
        """Do as the protocol says."""
        runtime = await self._runtime(say)
        say("Starting TensorBoard.")
        found = await asyncio.to_thread(self._existing, directories)
        with _Told():
            starting = self._start(name, prefix, found, runtime)
            async with self._pool.viewer(name, starting, tuple(found), renew=True):
                return

    async def forward(
        self,
        name: str,
        prefix: str,
        directories: Sequence[LogDirectory],
        request: Request,
        more: list[tuple[bytes, bytes]],
    ) -> Response:
        """Do as the protocol says."""
        runtime = await self._runtime(lambda line: None)
        # A page that is reloaded shows what there is now; its own further requests stay with that.
        renew = request.path == prefix
        found: Sequence[ShownDirectory] = ()
        if renew or not self._pool.has(name):
            found = await asyncio.to_thread(self._existing, directories)
        with _Told():
            starting = self._start(name, prefix, found, runtime)
            async with self._pool.viewer(name, starting, tuple(found), renew=renew) as viewer:
                return await viewer.forward(request, self._closing, more)

    def end(self, wanted: Callable[[str], bool]) -> None:
        """Do as the protocol says."""
        self._pool.end(wanted)

    async def close(self) -> None:
        """End all of them, and wait until they are gone."""
        await self._pool.close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _runtime(self, say: Say) -> PreparedRuntime:
        """Return TensorBoard's environment, built if needed. Raises FailedPrecondition."""
        choice = self._runtimes.catalog.named(TENSORBOARD.family)
        if isinstance(choice, RuntimeRefusal):
            raise FailedPrecondition(choice.reason)
        found = self._runtimes.ready(choice, ())
        return found or await self._built(choice, say)

    async def _built(self, choice: RuntimeChoice, say: Say) -> PreparedRuntime:
        say("Installing TensorBoard, once for all jobs; this takes some seconds.")
        loop = asyncio.get_running_loop()
        try:
            return await self._runtimes.prepare(choice, (), lambda line: _said(loop, say, line))
        except BuildFailed as failure:
            raise FailedPrecondition(
                f"TensorBoard cannot be installed here: {failure} On a machine without a package index run "
                f"`trainshed runtimes build {TENSORBOARD.family}` where there is one, with the same "
                "$TRAINSHED_CACHE, or copy the event files and look at them elsewhere: `tensorboard "
                "--logdir DIRECTORY`."
            ) from None

    def _start(
        self,
        name: str,
        prefix: str,
        found: Sequence[ShownDirectory],
        runtime: PreparedRuntime,
    ) -> Callable[[], Awaitable[Viewer]]:
        async def started() -> Viewer:
            terms = await asyncio.to_thread(self._known_terms)
            # A new directory each time: the viewer before may still be ending.
            self._started += 1
            workspace = self._root / f"{name}.{self._started}"
            return await start(workspace, found, runtime, prefix, terms)

        return started

    def _existing(self, directories: Sequence[LogDirectory]) -> Sequence[ShownDirectory]:
        """Return the directories that exist. Raises FailedPrecondition: none does."""
        if not (found := self._found(directories)):
            places = ", ".join(each.uri for each in directories) or "any bucket"
            raise FailedPrecondition(
                f"There are no event files in {places} yet. Programs write them to "
                "$AIP_TENSORBOARD_LOG_DIR (custom jobs with a base output directory) or below --job-dir."
            )
        return found

    def _known_terms(self) -> InstallationTerms:
        """Return the terms. Raises FailedPrecondition."""
        if not self._started:
            # It may be left of a service that was killed.
            shutil.rmtree(self._root, ignore_errors=True)
        try:
            return self._terms()
        except BuildFailed as failure:
            raise FailedPrecondition(str(failure)) from None

    def _found(self, directories: Sequence[LogDirectory]) -> list[ShownDirectory]:
        return [found for each in directories if (found := self._find(each)) is not None]


def _said(loop: asyncio.AbstractEventLoop, say: Say, line: str) -> None:
    """Pass a line on from a thread, which may go on after the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(say, line)


class _Told:
    """A context that turns a viewer's failure into the error that callers of the API get."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if isinstance(failure, ViewerFailed):
            raise Unavailable(str(failure)) from None
