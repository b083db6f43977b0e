"""Implements the runtimes port on this machine. Prepares base environments, and layers of jobs' packages on
top of them, in threads."""

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from trainshed.core.packages import JobPackage
from trainshed.core.runtime import CONTAINER, RuntimeChoice, RuntimeRefusal
from trainshed.core.units import Bytes, Nanos
from trainshed.eventloop.background import consume_exception, joined, log_failure
from trainshed.runtimes.cache_cleaner import REDUCTION, limit_size
from trainshed.runtimes.catalog import LocalCatalog, MappedImage
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.environments import Base, Environments
from trainshed.runtimes.families import GSUTIL
from trainshed.runtimes.images.cluster import ContainerImages
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.layers import Layers
from trainshed.runtimes.packages import Packages
from trainshed.runtimes.port import (
    BuildFailed,
    PackageSource,
    Preloadable,
    PreparedRuntime,
    Progress,
    ignore_progress,
)
from trainshed.runtimes.prefix import Prefix
from trainshed.runtimes.reduction import Reduction
from trainshed.runtimes.single_flight import SingleFlight

log = logging.getLogger(__name__)

_BUILDERS = 4


def _no_terms() -> InstallationTerms:
    raise BuildFailed(
        "The packages of jobs cannot be installed, because the service has not configured how to isolate an "
        "installation."
    )


class RuntimeSettings(Struct, frozen=True):
    """The operator's settings for runtimes."""

    #: Whether to refuse all substitutes.
    exact: bool = False
    image_map: tuple[MappedImage, ...] = ()
    #: Maximum size of the cache in bytes; None = unlimited. If it is exceeded, the least recently used
    #: entries are removed.
    cache_size: Bytes | None = None
    #: Returns whether this machine has a GPU. Called when this first matters.
    has_gpu: Callable[[], bool] = lambda: False
    #: Returns the terms for users' setup scripts. Called in threads. Builds raise its exceptions.
    terms: Callable[[], InstallationTerms] = _no_terms


class LocalRuntimes:
    """The `Runtimes` port on this machine. All files are below `cache`, which several services may share.

    `now`: clock in ns since the epoch. `images`: None if the service cannot run container images.
    """

    def __init__(
        self,
        cache: Path,
        source: PackageSource,
        settings: RuntimeSettings | None = None,
        *,
        now: Callable[[], int],
        images: "ContainerImages | None" = None,
        interpreters: Interpreters | None = None,
    ) -> None:
        settings = settings or RuntimeSettings()
        cache = cache.absolute()
        installer = Installer(cache / "uv")
        self._installer = installer
        self._cache, self._cache_size, self._now = cache, settings.cache_size, now
        self._interpreters = interpreters or Interpreters()
        self._environments = Environments(cache / "environments", installer, now)
        self._layers = Layers(cache / "layers", installer, now, settings.terms)
        self._packages = Packages(cache / "packages", source, installer.closing)
        self._reduction = Reduction(cache / REDUCTION, closing=installer.closing)
        #: Whether gsutil could not be built since this service started. If so, jobs run without it.
        self._lacks_gsutil = False
        self._images = images
        self._contained = ContainerRuntimes(images, self._packages)
        self._workers = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="runtimes")
        self._bases = SingleFlight[None](self._workers)
        # Stop the build of a layer (a job's packages) when no caller waits for it. Unlike a base, a layer
        # runs users' setup scripts and is useless to other jobs.
        self._tops = SingleFlight[Prefix](self._workers, abandons=True)
        self.catalog = LocalCatalog(
            self._interpreters,
            exact=settings.exact,
            image_map=settings.image_map,
            images=images,
            has_gpu=functools.cache(settings.has_gpu),
        )

    def search(self) -> None:
        """Start background work in threads, so that no request waits for it: find interpreters and image
        tools, and compile environments whose compilation was interrupted."""
        log_failure(self._workers.submit(self._interpreters.search), "looking for interpreters")
        log_failure(self._workers.submit(self._environments.compile_all), "compiling environments")
        if self._images is not None:
            self._images.search()

    def close(self) -> None:
        """Stop running builds, and start no further ones. Stop the callers of `prepare` first. Blocks until
        the threads exit."""
        self._installer.close()
        if self._images is not None:
            self._images.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def ready(self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]) -> PreparedRuntime | None:
        """Return the environment if no build is necessary (see the port). Makes a few stat calls for each
        package; reads, runs and fetches nothing."""
        if choice.family == CONTAINER:
            return self._contained.ready(choice, packages)
        try:
            base = self._environments.resolve(choice, self._interpreters)
        except BuildFailed:
            # Return None: `prepare` will report the error.
            return None
        if not self._environments.has(base):
            return None
        layer = None
        if packages:
            known = self._packages.known(packages)
            find = self._layers.find
            layer = find(base.prefix, known, choice.implicit_imports) if known else None
            if layer is None:
                return None
        if not self._calls_gsutil(choice, layer):
            return self._prepared_runtime(base, layer)
        command = self._gsutil()
        if command is None and not self._lacks_gsutil:
            return None
        return self._prepared_runtime(base, layer, command)

    async def prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None = None
    ) -> PreparedRuntime:
        """Prepare the runtime (see the port). The cancellation of a caller does not stop builds for which
        other callers wait."""
        prepared = await self._prepare(choice, packages, progress)
        if self._cache_size is not None:
            log_failure(self._workers.submit(self._limit_cache, self._cache_size), "bounding the cache")
        return prepared

    def _limit_cache(self, most: Bytes) -> None:
        for piece in limit_size(self._cache, self._installer, most, Nanos(self._now())):
            log.info("removed from the full cache: %s %s", piece.kind, piece.name)

    async def _prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None
    ) -> PreparedRuntime:
        if choice.family == CONTAINER:
            return await self._contained.prepare(choice, packages, progress)
        base = await asyncio.to_thread(self._environments.resolve, choice, self._interpreters)
        building = joined(self._build(base, progress))
        if not packages:
            await building
            command = await self._built_gsutil(choice, None, progress)
            return self._prepared_runtime(base, None, command)
        # Fetch the packages while the base is being built. If the fetch fails, this caller does not wait for
        # the base, so a later error of the build is ignored.
        building.add_done_callback(consume_exception)
        fetching = asyncio.to_thread(self._packages.fetch, packages, progress)
        try:
            _, fetched = await asyncio.gather(building, fetching)
        finally:
            building.cancel()
        # Build the base again if it was removed from a full cache in the meantime.
        await self._build(base, progress)
        prefix = base.prefix
        self._environments.record_use(prefix)
        old = choice.implicit_imports
        layer = self._layers.find(prefix, fetched, old) or await self._tops.run(
            self._layers.key(prefix, fetched, old),
            lambda tell, stop: self._layers.build(
                prefix, base.interpreter, fetched, tell, stop, implicit=old
            ),
            progress,
        )
        command = await self._built_gsutil(choice, layer, progress)
        return self._prepared_runtime(base, layer, command)

    def reduction(self) -> str | None:
        package = self._reduction.find()
        return str(package) if package else None

    async def prepare_reduction(self, progress: Progress | None = None) -> str:
        return str(await asyncio.to_thread(self._reduction.build, progress or ignore_progress))

    def _calls_gsutil(self, choice: RuntimeChoice, layer: Prefix | None) -> bool:
        return choice.gsutil or (layer is not None and self._layers.calls_gsutil(layer))

    def _gsutil(self) -> Base | None:
        """Return gsutil if it is built, otherwise None. Fast."""
        try:
            command = self._resolve_gsutil()
        except BuildFailed:
            return None
        return command if self._environments.has(command) else None

    async def _built_gsutil(
        self, choice: RuntimeChoice, layer: Prefix | None, progress: Progress | None
    ) -> Base | None:
        """Return gsutil for a program that calls it, built if necessary. Returns None for other programs.
        Also returns None if the build fails; the job's log then contains the error."""
        if not self._calls_gsutil(choice, layer):
            return None
        ready = await asyncio.to_thread(self._gsutil)
        if ready is not None or self._lacks_gsutil:
            return ready
        try:
            command = await asyncio.to_thread(self._resolve_gsutil)
            await self._build(command, progress)
        except BuildFailed as failure:
            # Run the job without gsutil. The program may mention gsutil only in a comment, for example.
            self._lacks_gsutil = True
            (progress or ignore_progress)(
                f"The command gsutil is not available: {failure} Jobs run without it until the service is "
                f"restarted, or `trainshed runtimes build {GSUTIL}` has built it."
            )
            return None
        return command

    async def _build(self, base: Base, progress: Progress | None) -> None:
        if not self._environments.has(base):
            await self._bases.run(base.key, lambda tell, _: self._environments.build(base, tell), progress)

    def _resolve_gsutil(self) -> Base:
        """Return gsutil's environment. Raises BuildFailed if no Python here can run it."""
        choice = self.catalog.for_family(GSUTIL)
        if isinstance(choice, RuntimeRefusal):
            raise BuildFailed(choice.reason)
        return self._environments.resolve(choice, self._interpreters)

    def _prepared_runtime(
        self, base: Base, layer: Prefix | None, command: Base | None = None
    ) -> PreparedRuntime:
        prefixes = [base.prefix]
        places = [*base.places]
        self._environments.record_use(base.prefix)
        if layer is not None:
            self._layers.record_use(layer)
            prefixes.insert(0, layer)
            places.append(str(layer.root))
        if command is not None:
            self._environments.record_use(command.prefix)
            prefixes.append(command.prefix)
            places += command.places
        return PreparedRuntime(
            template=str(prefixes[0].template),
            notices=self._layers.notices(layer) if layer else (),
            path=tuple(str(prefix.scripts) for prefix in prefixes),
            read_only=tuple(dict.fromkeys(places)),
            preloadable=Preloadable(str(base.prefix.template), base.sheet.preloads),
        )


class ContainerRuntimes:
    """Prepares container images as runtimes. The job's packages are installed in the image when its program
    starts (`trainshed.runtimes.images.executor`). Before the start, this class checks that the packages exist
    and match their pins."""

    def __init__(self, images: "ContainerImages | None", packages: Packages) -> None:
        #: The container images; None if the service cannot run them.
        self._images = images
        self._packages = packages

    def ready(self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]) -> PreparedRuntime | None:
        if self._images is None or self._packages.known(packages) is None:
            return None
        image = self._images.ready(choice.image)
        return PreparedRuntime("", image=image) if image else None

    async def prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None
    ) -> PreparedRuntime:
        if self._images is None:
            raise BuildFailed(
                f"The image {choice.image} cannot run, because this service does not run container images "
                "any more. Submit the job with an image of a framework that Trainshed provides."
            )
        await asyncio.to_thread(self._packages.fetch, packages, progress)
        return PreparedRuntime("", image=await self._images.prepare(choice.image, progress))
