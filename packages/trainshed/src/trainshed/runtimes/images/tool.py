"""Declares the port to tools that get images: podman, docker. It finds, pulls and exports them, and never
runs one."""

from pathlib import Path
from typing import IO, Protocol

from msgspec import Struct

from trainshed.core.units import Bytes
from trainshed.runtimes.port import Progress
from trainshed.runtimes.stop import Stop


class ToolFailed(Exception):
    """The tool failed. The message is the essence of what it said.

    `final`: a repetition will not help, because the image does not exist or may not be read.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class ImageConfig(Struct, frozen=True):
    """What an image says about itself."""

    #: 64 hexadecimal digits that change with its content.
    id: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    user: str = ""
    #: Architecture as images name it, such as `amd64`; "" = not said. Likewise `system`, such as `linux`.
    architecture: str = ""
    system: str = ""
    #: Bytes when unpacked.
    size: Bytes = 0


class ImageTool(Protocol):
    """All methods except `fingerprint` and `close` block; all may be called from several threads. Methods
    raise ToolFailed unless they say otherwise."""

    @property
    def name(self) -> str:
        """The tool's usual name: `podman`, `docker`."""
        ...

    def fingerprint(self) -> str:
        """Return a text that changes whenever an image is added, removed or renamed on this machine; "" if
        that is not known. Returns at once, never raises."""
        ...

    def inspect(self, reference: str) -> ImageConfig | None:
        """Return the image of that name or id on this machine; None if there is none."""
        ...

    def pull(self, reference: str, scratch: Path, tell: Progress, stop: Stop) -> None:
        """Pull an image from its registry. `scratch`: an empty directory for a half-pulled image. `tell`:
        called with each line that the tool prints, and now and then without one. `stop` ends the pull."""
        ...

    def export(self, image_id: str, name: str, into: IO[bytes], tell: Progress, stop: Stop) -> None:
        """Export its root file system, all layers in one, as a tar stream. `name`: a name for what the export
        leaves if it is killed; leftovers of that name are removed. `tell` and `stop`: as for `pull`."""
        ...

    def close(self) -> None:
        """Kill running commands; no further ones can be run. Does not wait."""
        ...
