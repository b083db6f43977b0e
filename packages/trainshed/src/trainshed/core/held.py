"""The file with the cluster allocations that a stopped service could not release. `trainshed down` reads the
file from the data directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

HELD: Final = "held.json"
"""The name of the file. An engine writes the file to the directory of its own files."""
_HELD: Final = f"engines/*/{HELD}"


class Leftover(msgspec.Struct, frozen=True):
    """An allocation of a stopped service that is no longer needed, but that the cluster may not have
    released."""

    #: The allocation's name in the cluster.
    name: str
    #: Why the allocation was not released: the cluster's error, or the missing information.
    why: str
    #: A command that releases the allocation, with or without a running service.
    command: tuple[str, ...]


def files(data: Path) -> list[Path]:
    """Return the files in a data directory that may list unreleased allocations."""
    return sorted(data.glob(_HELD))


def read(file: Path) -> tuple[Leftover, ...]:
    """Return the allocations that a file lists. Raise OSError if the file is unreadable, or ValueError if it
    is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[Leftover, ...])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}, a list of allocations to release, is damaged ({error})") from error


def text(left: Sequence[Leftover]) -> str:
    """Return the contents of a file that lists these allocations."""
    return msgspec.json.format(msgspec.json.encode(list(left)).decode(), indent=1) + "\n"
