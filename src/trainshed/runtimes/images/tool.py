"""The port to what gets images: podman, docker. It finds, pulls and exports them, and never runs one."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from trainshed.core.units import Bytes
from trainshed.runtimes.stop import Stop


class ToolFailed(Exception):
    """The tool did not do what it was asked. The message is the essence of what it said.

    `final`: asking again will not help, because the image is not there or may not be had.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class ImageConfig(Struct, frozen=True):
    """What an image says of itself."""

    #: 64 hexadecimal digits that change with its content.
    id: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    user: str = ""
    #: In the words of images, as `amd64`; "" = not said, like `system` (`linux`).
    architecture: str = ""
    system: str = ""
    #: Bytes, unpacked.
    size: Bytes = 0


class ImageTool(Protocol):
    """All methods but `fingerprint` block, may be called from several threads, and raise ToolFailed."""

    @property
    def name(self) -> str:
        """What people call it: `podman`, `docker`."""
        ...

    def fingerprint(self) -> str:
        """A text that changes whenever an image is added, removed or named anew on this machine; "" if that
        cannot be told. Answers at once, never raises."""
        ...

    def inspect(self, reference: str) -> ImageConfig | None:
        """The image of that name or id that is on this machine; None: there is none."""
        ...

    def pull(self, reference: str, scratch: Path, hear: Callable[[str], None], stop: Stop) -> None:
        """Fetch it from its registry. `scratch`: an empty directory for what is half pulled. `hear` takes
        what it shows on a terminal, line by line, "" about every second in which that is nothing; what it
        raises ends the pull. So does `stop`."""
        ...

    def export(self, image_id: str, name: str, take: Callable[[bytes], None]) -> None:
        """Hand its root file system, all layers in one, as a tar stream to `take`, which may raise to stop
        it. `name`: what is left behind under this name by an export that was killed is removed."""
        ...

    def close(self) -> None:
        """Kill what is under way; nothing more can be asked. Does not wait."""
        ...
