"""Says what a service that has ended could not give back to its cluster: a file in its data directory, which
`trainshed down` reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

HELD: Final = "held.json"
"""The file's name, in the directory of the engine's own files."""
_HELD: Final = f"engines/*/{HELD}"


class Leftover(msgspec.Struct, frozen=True):
    """An allocation that is no longer needed, and that the cluster may still hold."""

    #: The cluster's own name of it.
    name: str
    #: The cluster's reason, or what is not known of it.
    why: str
    #: Gives it back, whether or not a service runs.
    command: tuple[str, ...]


def files(data: Path) -> list[Path]:
    """Return the files of a data directory that may say so."""
    return sorted(data.glob(_HELD))


def read(file: Path) -> tuple[Leftover, ...]:
    """Return the contents of a file. Raise OSError, or ValueError if the file is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[Leftover, ...])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error})") from error


def text(left: Sequence[Leftover]) -> str:
    """Return the text of a file."""
    return msgspec.json.format(msgspec.json.encode(list(left)).decode(), indent=1) + "\n"
