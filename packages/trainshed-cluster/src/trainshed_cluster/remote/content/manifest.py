"""Declares the manifest of a launch: the directories of the service's machine that a node needs. The service
and its agents share this module.

A *unit* is a directory that is built once and never changed: a Python environment, a layer (a job's packages
on top of an environment), a container image, a Python interpreter. A unit has the same path on every node,
because environments contain absolute paths.
"""

from dataclasses import dataclass

from trainshed.core.units import Bytes

BUILT = ".built"
"""Name of the file that marks a directory for nodes (a unit) as finished. Processes that use the directory
hold a shared lock on this file (`trainshed.replica.system.cache_leases`)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A directory that a node needs completely."""

    path: str
    #: Digest of the directory's content (`trees.Identity`).
    digest: str
    #: Total size of the directory's files.
    bytes: Bytes
    #: (directory, permission bits) of the parent directories within the service's cache, outermost first.
    parents: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All directories that the plans of a launch need on a node (units). The plans refer to them directly, or
    through other units."""

    units: tuple[Unit, ...] = ()
    #: Directories that the service does not send, because they belong to the service's machine. A node must
    #: have the same directories.
    outside: tuple[str, ...] = ()
