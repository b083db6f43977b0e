"""The container images of a cluster that pulls and runs them itself: what they start is read by its engine,
and known for a while."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from trainshed.core.runtime import Image
from trainshed.core.units import Nanos
from trainshed.runtimes.images.references import is_pinned
from trainshed.runtimes.port import Progress

if TYPE_CHECKING:
    from trainshed.runtimes.images.service import Images

ContainerImages: TypeAlias = "Images | ClusterImages"
"""What provides the container images of jobs."""
_FRESH = 60 * 10**9
"""ns for which a registry is not asked again about one name."""


class _Read(Struct, frozen=True):
    image: Image
    at: Nanos


class ClusterImages:
    """The images of an engine's cluster; does as `Images`. `read`: reads what an image says about itself, or
    why that cannot be read; blocks. `now`: nanoseconds, for durations only."""

    def __init__(self, read: Callable[[str], Image], *, now: Callable[[], Nanos]) -> None:
        self._read = read
        self._now = now
        self._known: dict[str, _Read] = {}

    def search(self) -> None:
        """Does nothing: there is nothing to look for on this machine."""

    def close(self) -> None:
        """Does nothing."""

    def refusal(self, reference: str) -> str | None:
        """Returns None: only the cluster knows whether it can pull the image."""
        return None

    def ready(self, reference: str) -> Image | None:
        """Return what was read of the image recently."""
        read = self._known.get(reference)
        if read is None:
            return None
        is_final = is_pinned(reference) and not read.image.unread
        return read.image if is_final or self._now() - read.at < _FRESH else None

    async def prepare(self, reference: str, progress: Progress | None) -> Image:
        """Read from the registry what the image starts. Raises nothing, because jobs with their own command
        do not need it."""
        if (known := self.ready(reference)) is not None:
            return known
        image = await asyncio.to_thread(self._read, reference)
        if image.unread and progress is not None:
            progress(
                f"What the image {reference} starts by itself is not known here: {image.unread}."
            )
        self._known[reference] = _Read(image, self._now())
        return image
