"""What tools that get images say about them: podman, docker."""

from msgspec import Struct

from trainshed.core.units import Bytes


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
