"""What a launch needs of the service's directories, told to a node: the words that both sides share.

A *unit* is a directory that is built once and then never changed: an environment, a layer, an image, an
interpreter. It lies at the same path on every node, because environments hold absolute paths.
"""

from dataclasses import dataclass
from pathlib import Path

from trainshed.core.units import Bytes

COMPILED = ".compiled"
"""The file that says that all bytecode is there: it is written while an environment is used already."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A directory that a node needs whole."""

    path: str
    #: Tells its content from any other (`trees.Identity`).
    digest: str
    #: Of its files.
    bytes: Bytes
    #: All of its bytecode is there; of a directory that is not, there may be more another time.
    is_compiled: bool
    #: (directory, permission bits) of those that it lies in, from the outermost that belongs to the service.
    parents: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that the plans of a launch name, and what that refers to."""

    units: tuple[Unit, ...] = ()
    #: Directories of the machine that are not sent: the node has to have its own.
    outside: tuple[str, ...] = ()


def is_below(path: Path, root: Path) -> bool:
    """By name alone."""
    return path == root or path.is_relative_to(root)
