"""Describes container images that an engine's cluster provides: programs run in them as they are, and the
service only reads which program they start."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from trainshed.core.units import Nanos
from trainshed.runtimes.images.references import fault_of, is_pinned
from trainshed.runtimes.images.registry import NotRead, Registries
from trainshed.runtimes.port import Image, Progress

_FRESH = 60 * 10**9
"""ns for which a registry is not asked again about one name."""


class _Read(Struct, frozen=True):
    image: Image
    at: Nanos


class ClusterImages:
    """The `ContainerImages` of an engine's cluster. `now`: nanoseconds, for durations only."""

    def __init__(self, registries: Registries, *, now: Callable[[], Nanos]) -> None:
        self._registries = registries
        self._now = now
        self._read: dict[str, _Read] = {}

    def search(self) -> None:
        """See `ContainerImages`. There is nothing to look for on this machine."""

    def close(self) -> None:
        """See `ContainerImages`."""

    def refusal(self, reference: str) -> str:
        """See `ImageSupport`. Only the cluster knows whether it can pull the image."""
        return fault_of(reference)

    def ready(self, reference: str) -> Image | None:
        """Return what was read of the image recently."""
        read = self._read.get(reference)
        if read is None:
            return None
        is_final = is_pinned(reference) and not read.image.unread
        return read.image if is_final or self._now() - read.at < _FRESH else None

    async def prepare(self, reference: str, progress: Progress | None) -> Image:
        """Read from the registry what the image starts. Raises nothing, because jobs with their own command
        do not need it."""
        if (known := self.ready(reference)) is not None:
            return known
        try:
            config = await asyncio.to_thread(self._registries.read, reference)
        except NotRead as failure:
            image = Image("", "", unread=str(failure))
            if progress is not None:
                progress(
                    f"What the image {reference} starts by itself is not known here: {failure}."
                )
        else:
            image = Image(
                root="",
                digest=config.id,
                entrypoint=config.entrypoint,
                command=config.command,
                environ=config.environ,
                workdir=config.workdir,
                user=config.user,
            )
        self._read[reference] = _Read(image, self._now())
        return image
