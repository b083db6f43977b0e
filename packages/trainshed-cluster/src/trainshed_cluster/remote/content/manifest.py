"""Declares the manifest of a launch: the directories of the service's machine that a node needs. Both sides
share it.

A *unit* is a directory that is built once and never changed: an environment, a layer, an image, an
interpreter. It has the same path on every node, because environments contain absolute paths.
"""

from dataclasses import dataclass

from trainshed.core.units import Bytes

BUILT = ".built"
"""The file of a finished unit. Users of the unit hold a shared lock on it
(`trainshed.replica.system.cache_leases`)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A directory that a node needs completely."""

    path: str
    #: Digest of its content (`trees.Identity`).
    digest: str
    #: Total size of its files.
    bytes: Bytes
    #: (directory, permission bits) of its parent directories, outermost of the service first.
    parents: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All units of a launch's plans, and the units that these refer to."""

    units: tuple[Unit, ...] = ()
    #: Directories of the machine that are not sent. The node must have its own.
    outside: tuple[str, ...] = ()
