"""Declares the manifest that tells a node what a launch needs of the service's directories; both sides share
it.

A *unit* is a directory that is built once and then never changed: an environment, a layer, an image, an
interpreter. It lies at the same path on every node, because environments hold absolute paths.
"""

from dataclasses import dataclass

from trainshed.core.units import Bytes

BUILT = ".built"
"""The file of a finished unit. Each user of the unit holds a shared lock on it
(`trainshed.replica.system.cache_leases`)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A directory that a node needs completely."""

    path: str
    #: Digest of its content (`trees.Identity`).
    digest: str
    #: Size of its files.
    bytes: Bytes
    #: (directory, permission bits) of the directories around it, from the service's outermost one.
    parents: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All units that the plans of a launch name, and those that they refer to."""

    units: tuple[Unit, ...] = ()
    #: Directories of the machine that are not sent, so that the node must have its own.
    outside: tuple[str, ...] = ()
