"""The service's side of content: selects the directories that nodes may fetch, computes digests of the
directories, and sends the directories."""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trainshed
import trainshed_cluster
from trainshed.core.launch import LaunchPlan
from trainshed_cluster.remote.content import trees
from trainshed_cluster.remote.content.manifest import BUILT, Manifest, Unit
from trainshed_cluster.remote.content.references import find_references

_SOURCES = os.pathsep.join(
    dict.fromkeys(
        os.path.realpath(Path(package.__path__[0]).parent) for package in (trainshed_cluster, trainshed)
    )
)
"""Module search path of the process that packs a directory for a node. It excludes site-packages, so that the
process starts faster."""
_MAX_SENDERS = 4
"""Maximum number of directories that are read from the disk at the same time, to send them to nodes. A higher
number would only slow down the disk."""
_STALL_TIMEOUT = 60.0
"""Seconds after which a node that accepts no data is disconnected, because other nodes wait for their turn.
"""
_MAX_DEPTH = 3
"""Maximum depth of a directory to send (a unit) below the cache or interpreter directory that contains it."""
SHARED_PREFIXES = ("/", "/usr", "/usr/local")
"""Prefixes (installation directories) of Pythons that the service never sends: these directories contain far
more than an interpreter, and exist on every node."""


def content_directories(plans: Iterable[LaunchPlan]) -> tuple[str, ...]:
    """Return the directories on the service's machine to which the launch plans refer."""
    paths: dict[str, None] = {}
    for plan in plans:
        software = plan.software
        image = (software.image.directory,) if software.image else ()
        packages = plan.reduction.packages
        for path in (software.template, *software.path, *software.read_only, *image, packages):
            if path:
                paths[path] = None
    return tuple(paths)


class ContentRefused(Exception):
    """The service must not send a directory to nodes. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class _UnitPath:
    """The path of a unit on the service's disk. A unit is a finished directory that the service sends to
    nodes as a whole: a Python environment, a layer (a job's packages on top of an environment), a container
    image or a Python interpreter. `root`: the cache or interpreter directory that contains the unit."""

    path: Path
    root: Path
    is_interpreter: bool = False


class Library:
    """The units of a service: directories such as environments that it sends to nodes as a whole.

    Args:
        roots: Directories that contain finished units. Only these units may be fetched.
        interpreters: Returns the prefixes of Pythons that do not belong to the system. Called in threads.
    """

    def __init__(self, roots: Sequence[Path], interpreters: Callable[[], Collection[Path]] = tuple) -> None:
        self._roots = tuple(root.absolute() for root in roots)
        self._interpreters = interpreters
        self._units: dict[Path, tuple[tuple[int, ...], Unit, tuple[str, ...]]] = {}
        self._sending = asyncio.Semaphore(_MAX_SENDERS)

    async def manifest(self, paths: Collection[str]) -> Manifest:
        """Return the manifest for these absolute directories (`content_directories`). Raises OSError, and
        ContentRefused if a directory is in the service's cache but is not a finished unit (a directory that
        may be sent as a whole)."""
        return await asyncio.to_thread(self._manifest, paths)

    async def send(
        self, path: str, writer: asyncio.StreamWriter, *, granted: Collection[str] | None = None
    ) -> None:
        """Write a directory (a unit) to a stream, then close the writer. The stream reports rejections and
        failures to the node. `granted`: paths of the units that the agent may fetch; None = all units."""
        try:
            async with self._sending:
                try:
                    unit_path = await asyncio.to_thread(self._unit_to_send, path, granted)
                except (ContentRefused, OSError) as refusal:
                    writer.write(trees.failure_tar(str(refusal)))
                else:
                    await _send(unit_path, writer)
            await writer.drain()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()  # Send no more data: the agent has ended or hangs. It may retry.
        finally:
            writer.close()

    # --- methods that run in threads ---

    def _manifest(self, paths: Collection[str]) -> Manifest:
        units: dict[str, Unit] = {}
        outside: set[str] = set()
        prefixes = self._prefixes()
        waiting = list(dict.fromkeys(paths))
        seen: set[Path] = set()
        while waiting:
            path = waiting.pop(0)
            unit_path = self._find_unit(path, prefixes)
            if unit_path is None:
                outside.add(path)
                continue
            if unit_path.path in seen:
                continue
            seen.add(unit_path.path)
            unit, mentioned = self._unit(unit_path)
            units[unit.path] = unit
            for other in mentioned:
                try:
                    mentioned_unit = self._find_unit(other, prefixes)
                except ContentRefused:
                    continue  # A package mentions this path, but no launch plan needs it, so ignore it.
                if mentioned_unit is not None:
                    waiting.append(str(mentioned_unit.path))
                elif (Path(other) / "os.py").is_file():
                    # Do not send the standard library of the machine's own Python.
                    outside.add(other)
        return Manifest(tuple(units.values()), tuple(sorted(outside)))

    def _prefixes(self) -> list[Path]:
        return [prefix for prefix in self._interpreters() if str(prefix) not in SHARED_PREFIXES]

    def _unit_to_send(self, path: str, granted: Collection[str] | None) -> _UnitPath:
        unit_path = self._find_unit(path, self._prefixes())
        if unit_path is not None and unit_path.is_interpreter:
            # The node rejects the directory if its content differs from the cached identity. This happens if
            # packages were installed without changing the directory's time. Drop the cached identity, so that
            # the next request computes it again.
            self._units.pop(unit_path.path, None)
        if unit_path is None or str(unit_path.path) != path or (granted is not None and path not in granted):
            raise ContentRefused(f"this service does not send {path} to its nodes")
        return unit_path

    def _find_unit(self, path: str, prefixes: Sequence[Path]) -> _UnitPath | None:
        """Return the unit (a directory to send as a whole) that contains `path`; None = the path belongs to
        the machine and is not sent. Raises ContentRefused if the path is in the cache but must not be sent.
        """
        path_below = Path(os.path.normpath(path))
        if not path_below.is_absolute():
            raise ContentRefused(f"{path!r} is not an absolute path")
        for root in self._roots:
            if path_below.is_relative_to(root):
                return _UnitPath(_finished_unit(path_below, root), root)
        for prefix in prefixes:
            if path_below.is_relative_to(prefix):
                return _UnitPath(prefix, prefix.parent, is_interpreter=True)
        real = Path(os.path.realpath(path_below))
        if any(real.is_relative_to(os.path.realpath(root)) for root in self._roots):
            # A node stores each directory at its canonical path, so other paths would not work there.
            raise ContentRefused(
                f"{path} leads through a link into the service's cache; use the path without links, {real}"
            )
        return None

    def _unit(self, unit_path: _UnitPath) -> tuple[Unit, tuple[str, ...]]:
        """Return a unit (a directory to send as a whole), and the directories to which it refers. The result
        is cached until the unit changes."""
        # Compare the modification time as well, because file systems reuse inode numbers.
        status = unit_path.path.stat()
        numbers = [status.st_dev, status.st_ino, status.st_mtime_ns]
        with contextlib.suppress(FileNotFoundError):
            numbers.append((unit_path.path / BUILT).stat().st_ino)
        key = tuple(numbers)
        known = self._units.get(unit_path.path)
        if known is not None and known[0] == key:
            return known[1], known[2]
        identity = trees.identify(unit_path.path, without_sites=unit_path.is_interpreter)
        unit = Unit(
            path=str(unit_path.path),
            digest=identity.digest,
            bytes=identity.bytes,
            parents=() if unit_path.is_interpreter else _parents(unit_path),
        )
        mentioned = () if unit_path.is_interpreter else find_references(unit_path.path)
        self._units[unit_path.path] = (key, unit, mentioned)
        # Other threads may remove the same entries at the same time.
        for gone in [path for path in tuple(self._units) if not path.exists()]:
            self._units.pop(gone, None)
        return unit, mentioned


def _finished_unit(path_below: Path, root: Path) -> Path:
    """Return the finished unit (a directory to send as a whole) that contains a path below `root`. Raises
    ContentRefused if no finished unit contains it."""
    unit_path = root
    for part in path_below.relative_to(root).parts[:_MAX_DEPTH]:
        unit_path = unit_path / part
        try:
            if not stat.S_ISDIR(unit_path.lstat().st_mode):
                break
            if stat.S_ISREG((unit_path / BUILT).lstat().st_mode):
                return unit_path
        except FileNotFoundError:
            continue
    raise ContentRefused(f"{path_below} is not a finished directory of the service's cache {root}")


def _parents(unit_path: _UnitPath) -> tuple[tuple[str, int], ...]:
    between = [path for path in unit_path.path.parents if path.is_relative_to(unit_path.root)]
    return tuple((str(path), stat.S_IMODE(path.stat().st_mode)) for path in reversed(between))


async def _send(unit_path: _UnitPath, writer: asyncio.StreamWriter) -> None:
    """Send a unit, which is a directory. A separate process packs it, and ends before this call returns.
    Raises ConnectionError or TimeoutError if the node does not accept the data."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-S", "-m", trees.__name__, str(unit_path.path)),
        *([trees.WITHOUT_SITES] if unit_path.is_interpreter else []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _SOURCES},
        limit=trees.PIECE,
    )
    assert child.stdout is not None
    try:
        while piece := await child.stdout.read(trees.PIECE):
            writer.write(piece)
            async with asyncio.timeout(_STALL_TIMEOUT):
                await writer.drain()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()
