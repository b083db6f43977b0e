"""The runtimes of this machine behind the port: base environments, layers and their preparation in threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.environments import Environments
from trainshed.runtimes.families import sheet_of
from trainshed.runtimes.installer import Installer, Stop
from trainshed.runtimes.interpreters import Interpreter, Interpreters
from trainshed.runtimes.layers import Layers
from trainshed.runtimes.packages import Package, Packages
from trainshed.runtimes.port import BuildFailed, PackageSource, PreparedRuntime
from trainshed.runtimes.prefix import Prefix
from trainshed.runtimes.sheet import Release, Sheet, parse_minor

_BUILDERS = 4


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`exact`: refuse substitutes. `interpreters`: further Python executables. `uv`: the uv to use ("" = ours)."""

    exact: bool = False
    interpreters: tuple[str, ...] = ()
    uv: str = ""


class LocalRuntimes:
    """The `Runtimes` port on this machine. Everything lies below `cache`, which several services may share.

    `progress` is called with a line at a time, from worker threads. `now`: nanoseconds, for durations only.
    """

    def __init__(
        self,
        cache: Path,
        source: PackageSource,
        settings: RuntimeSettings | None = None,
        *,
        now: Callable[[], int],
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        settings = settings or RuntimeSettings()
        cache = cache.absolute()
        installer = Installer(cache / "uv", binary=settings.uv)
        self._cache = cache
        self._installer = installer
        self._interpreters = Interpreters(cache / "interpreters.json", extra=settings.interpreters)
        self._environments = Environments(cache / "environments", installer, now)
        self._layers = Layers(cache / "layers", installer, now)
        self._packages = Packages(cache / "packages", source)
        self._progress = progress
        self._workers = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="runtimes")
        self._flights: dict[str, _Flight] = {}
        self._flights_lock = threading.RLock()
        self.catalog = LocalCatalog(self._interpreters, exact=settings.exact)

    def search(self) -> None:
        """Look for interpreters in the background, so that no request has to wait for it."""
        self._workers.submit(self._interpreters.search)

    def close(self) -> None:
        """Stop builds that are under way and start no more. Stop the callers of `prepare` first."""
        self._installer.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def ready(self, choice: RuntimeChoice, package_uris: tuple[str, ...]) -> PreparedRuntime | None:
        """See the port. A few stat calls for each package; nothing is read, run or fetched."""
        try:
            sheet, release, interpreter = self._resolve(choice)
            base = self._environments.find(sheet, release, interpreter)
        except BuildFailed:
            # `prepare` will say so where a failure belongs.
            return None
        if base is None:
            return None
        if not package_uris:
            return self._prepared(base, None, interpreter)
        packages = self._packages.known(package_uris)
        layer = self._layers.find(base, packages) if packages else None
        return self._prepared(base, layer, interpreter) if layer else None

    async def prepare(
        self, choice: RuntimeChoice, package_uris: tuple[str, ...]
    ) -> PreparedRuntime:
        """See the port. A cancelled caller stops no build that others wait for."""
        sheet, release, interpreter = await asyncio.to_thread(self._resolve, choice)
        key = self._environments.key(sheet, release, interpreter)
        building = asyncio.wrap_future(
            self._fly(
                key,
                lambda: self._environments.build(sheet, release, interpreter, self._progress),
            ).future
        )
        if not package_uris:
            return self._prepared(await asyncio.shield(building), None, interpreter)
        # The packages are fetched while the base is built; if they fail, nobody waits for the base any more.
        building.add_done_callback(_looked_at)
        fetching = asyncio.to_thread(self._packages.fetch, package_uris)
        base, packages = await asyncio.gather(asyncio.shield(building), fetching)
        layer = await self._layer(base, interpreter, packages)
        return self._prepared(base, layer, interpreter)

    async def warm(self, family: str = "") -> PreparedRuntime:
        """Build a family's default environment ahead ("" = the default family). Raises BuildFailed."""
        choice = await asyncio.to_thread(self.catalog.default, family)
        if isinstance(choice, RuntimeRefusal):
            raise BuildFailed(choice.reason)
        return await self.prepare(choice, ())

    async def _layer(
        self, base: Prefix, interpreter: Interpreter, packages: tuple[Package, ...]
    ) -> Prefix:
        """The layer, once it is built. When the last caller that waits for it is cancelled, the build is stopped:
        unlike a base it runs setup scripts of users, and is of use to nobody else."""
        key, stop = self._layers.key(base, packages), Stop()
        flight = self._fly(
            key,
            lambda: self._layers.build(base, interpreter, packages, self._progress, stop),
            stop,
        )
        flight.callers += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(flight.future))
        except asyncio.CancelledError:
            if flight.callers == 1:
                self._land(key, flight)
                flight.stop.ask()
            raise
        finally:
            flight.callers -= 1

    def _fly(self, key: str, build: Callable[[], Prefix], stop: Stop | None = None) -> "_Flight":
        """The build of that key that is under way, or a new one: one thread for however many callers."""
        with self._flights_lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = _Flight(self._workers.submit(build), stop or Stop())
                self._flights[key] = flight
                flight.future.add_done_callback(lambda _: self._land(key, flight))
            return flight

    def _land(self, key: str, flight: "_Flight") -> None:
        with self._flights_lock:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _resolve(self, choice: RuntimeChoice) -> tuple[Sheet, Release, Interpreter]:
        sheet = sheet_of(choice.family)
        release = sheet.release(choice.version) if sheet else None
        python = parse_minor(choice.python_version)
        interpreter = self._interpreters.get(python) if python else None
        if sheet is None or release is None or interpreter is None:
            raise BuildFailed(
                f"The runtime {choice.family} {choice.version} on Python {choice.python_version} is not known "
                "here any more: its family was removed, or its interpreter is gone. Submit the job again."
            )
        return sheet, release, interpreter

    def _prepared(
        self, base: Prefix, layer: Prefix | None, interpreter: Interpreter
    ) -> PreparedRuntime:
        top = layer or base
        return PreparedRuntime(
            template=str(top.template),
            notices=self._layers.notices(layer) if layer else (),
            path=tuple(str(each.scripts) for each in (layer, base) if each),
            read_only=(str(self._cache), interpreter.stdlib),
        )


@dataclass(slots=True, eq=False)
class _Flight:
    """A build under way. `callers`: how many wait for it, on the event loop alone."""

    future: Future[Prefix]
    stop: Stop
    callers: int = 0


def _looked_at(done: asyncio.Future[Prefix]) -> None:
    """Take notice of a failure, so that the event loop does not complain that nobody did."""
    if not done.cancelled():
        done.exception()
