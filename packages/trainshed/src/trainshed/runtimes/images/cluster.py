"""Provides the container images of a cluster that pulls and runs images itself. The cluster's engine reads
their default commands, which are cached for a short time."""

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
"""The container images of jobs, from this machine or from a cluster."""
_FRESH = 60 * 10**9
"""Cache time in ns of a registry's response for one image name."""


class _Read(Struct, frozen=True):
    image: Image
    at: Nanos


class ClusterImages:
    """The images of an engine's cluster, with the interface of `Images`. `read`: returns the configuration of
    an image, or the reason why it is unreadable; blocks. `now`: nanoseconds, for durations."""

    def __init__(self, read: Callable[[str], Image], *, now: Callable[[], Nanos]) -> None:
        self._read = read
        self._now = now
        self._known: dict[str, _Read] = {}

    def search(self) -> None:
        """Do nothing, because this machine needs no image tool."""

    def close(self) -> None:
        """Do nothing, because no operation runs on this machine."""

    def refusal(self, reference: str) -> str | None:
        """Return None (no refusal), because only the cluster can determine whether it can pull the image."""
        return None

    def ready(self, reference: str) -> Image | None:
        """Return the image if it was read recently, otherwise None."""
        read = self._known.get(reference)
        if read is None:
            return None
        is_final = is_pinned(reference) and not read.image.unread
        return read.image if is_final or self._now() - read.at < _FRESH else None

    async def prepare(self, reference: str, progress: Progress | None) -> Image:
        """Return the image, with its default command from the registry. If the default command cannot be
        read, report this as progress and raise no error: jobs with their own command do not need it."""
        if (known := self.ready(reference)) is not None:
            return known
        image = await asyncio.to_thread(self._read, reference)
        if image.unread and progress is not None:
            progress(f"The default command of the image {reference} is unknown here: {image.unread}.")
        self._known[reference] = _Read(image, self._now())
        return image
