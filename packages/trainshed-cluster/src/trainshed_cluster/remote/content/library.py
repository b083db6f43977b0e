"""The service's side of content: it decides which of its directories nodes may fetch, identifies each, and
sends it."""

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
        os.path.realpath(Path(package.__path__[0]).parent)
        for package in (trainshed_cluster, trainshed)
    )
)
"""Where the process that packs finds our modules; site-packages would only make it slower."""
_SENDERS = 4
"""How many units are read at once: more would only make the disk jump."""
_STALLED = 60.0
"""Seconds in which a node has to take the next piece: others wait for their turn."""
_DEEPEST = 3
"""Directories between a root and a unit, at most."""
EVERYBODYS = ("/", "/usr", "/usr/local")
"""Prefixes that hold far more than an interpreter, and are on each node anyway."""


def named_by(plans: Iterable[LaunchPlan]) -> tuple[str, ...]:
    """Return the directories of the service's machine that plans name."""
    paths: dict[str, None] = {}
    for plan in plans:
        software = plan.software
        image = (software.image.directory,) if software.image else ()
        packages = plan.reduction.packages
        for path in (software.template, *software.path, *software.read_only, *image, packages):
            if path:
                paths[path] = None
    return tuple(paths)


class Refused(Exception):
    """A directory may not be sent to nodes. The message says why."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A unit on the service's disk."""

    path: Path
    root: Path
    is_interpreter: bool = False


class Library:
    """The units of a service. `roots`: directories whose finished units may be fetched, and nothing else
    there. `interpreters`: returns the prefixes of the Pythons that are not the system's own; called in
    threads."""

    def __init__(
        self, roots: Sequence[Path], interpreters: Callable[[], Collection[Path]] = tuple
    ) -> None:
        self._roots = tuple(root.absolute() for root in roots)
        self._interpreters = interpreters
        self._units: dict[Path, tuple[tuple[int, ...], Unit, tuple[str, ...]]] = {}
        self._sending = asyncio.Semaphore(_SENDERS)

    async def manifest(self, paths: Collection[str]) -> Manifest:
        """Return what a node needs for plans that name these absolute directories (`named_by`). Raises
        OSError, and Refused if one lies in the service's cache and is no finished unit."""
        return await asyncio.to_thread(self._manifest, paths)

    async def send(
        self, path: str, writer: asyncio.StreamWriter, *, granted: Collection[str] | None = None
    ) -> None:
        """Write a unit, then close the writer. Refusals and failures are written into the stream, for the
        other side to report. `granted`: paths of the units that the agent may fetch; None = any."""
        try:
            async with self._sending:
                try:
                    place = await asyncio.to_thread(self._unit_to_send, path, granted)
                except (Refused, OSError) as refusal:
                    writer.write(trees.failed(str(refusal)))
                else:
                    await _send(place, writer)
            await writer.drain()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()  # The agent is gone or hangs; it asks again.
        finally:
            writer.close()

    # --- in threads ---

    def _manifest(self, paths: Collection[str]) -> Manifest:
        units: dict[str, Unit] = {}
        outside: set[str] = set()
        prefixes = self._prefixes()
        waiting = list(dict.fromkeys(paths))
        seen: set[Path] = set()
        while waiting:
            path = waiting.pop(0)
            place = self._place(path, prefixes)
            if place is None:
                outside.add(path)
                continue
            if place.path in seen:
                continue
            seen.add(place.path)
            unit, mentioned = self._unit(place)
            units[unit.path] = unit
            for other in mentioned:
                try:
                    placed = self._place(other, prefixes)
                except Refused:
                    continue  # A path that a package mentions is not needed by a plan.
                if placed is not None:
                    waiting.append(str(placed.path))
                elif (Path(other) / "os.py").is_file():
                    outside.add(other)  # The machine's own standard library.
        return Manifest(tuple(units.values()), tuple(sorted(outside)))

    def _prefixes(self) -> list[Path]:
        return [prefix for prefix in self._interpreters() if str(prefix) not in EVERYBODYS]

    def _unit_to_send(self, path: str, granted: Collection[str] | None) -> _Place:
        place = self._place(path, self._prefixes())
        if place is not None and place.is_interpreter:
            # Something may have been installed in it, whose directory is as old as before: then what is sent
            # is not taken, and has to be known anew when it is asked for again.
            self._units.pop(place.path, None)
        if (
            place is None
            or str(place.path) != path
            or (granted is not None and path not in granted)
        ):
            raise Refused(f"{path} is not among what this service gives to its nodes")
        return place

    def _place(self, path: str, prefixes: Sequence[Path]) -> _Place | None:
        """Return the unit of a directory; None = it is the machine's own. Raises Refused."""
        wanted = Path(os.path.normpath(path))
        if not wanted.is_absolute():
            raise Refused(f"{path!r} is no absolute path")
        for root in self._roots:
            if wanted.is_relative_to(root):
                return _Place(_finished(wanted, root), root)
        for prefix in prefixes:
            if wanted.is_relative_to(prefix):
                return _Place(prefix, prefix.parent, is_interpreter=True)
        real = Path(os.path.realpath(wanted))
        if any(real.is_relative_to(os.path.realpath(root)) for root in self._roots):
            # A node would not find it under another path.
            raise Refused(
                f"{path} lies in the service's cache, but is no name by which that is known"
            )
        return None

    def _unit(self, place: _Place) -> tuple[Unit, tuple[str, ...]]:
        """Return a unit and what it refers to, cached for as long as it is unchanged."""
        # Inode numbers are reused, which times are not.
        status = place.path.stat()
        numbers = [status.st_dev, status.st_ino, status.st_mtime_ns]
        with contextlib.suppress(FileNotFoundError):
            numbers.append((place.path / BUILT).stat().st_ino)
        key = tuple(numbers)
        known = self._units.get(place.path)
        if known is not None and known[0] == key:
            return known[1], known[2]
        identity = trees.identify(place.path, without_sites=place.is_interpreter)
        unit = Unit(
            path=str(place.path),
            digest=identity.digest,
            bytes=identity.bytes,
            parents=() if place.is_interpreter else _parents(place),
        )
        mentioned = () if place.is_interpreter else find_references(place.path)
        self._units[place.path] = (key, unit, mentioned)
        # Other threads may do the same now.
        for gone in [path for path in tuple(self._units) if not path.exists()]:
            self._units.pop(gone, None)
        return unit, mentioned


def _finished(wanted: Path, root: Path) -> Path:
    """Return the unit that contains a path below a root. Raises Refused."""
    place = root
    for part in wanted.relative_to(root).parts[:_DEEPEST]:
        place = place / part
        try:
            if not stat.S_ISDIR(place.lstat().st_mode):
                break
            if stat.S_ISREG((place / BUILT).lstat().st_mode):
                return place
        except FileNotFoundError:
            continue
    raise Refused(f"{wanted} is no finished directory of the service's cache {root}")


def _parents(place: _Place) -> tuple[tuple[str, int], ...]:
    between = [path for path in place.path.parents if path.is_relative_to(place.root)]
    return tuple((str(path), stat.S_IMODE(path.stat().st_mode)) for path in reversed(between))


async def _send(place: _Place, writer: asyncio.StreamWriter) -> None:
    """Send a unit by a process that packs it and that ends with this call. Raises ConnectionError,
    TimeoutError."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-S", "-m", trees.__name__, str(place.path)),
        *([trees.WITHOUT_SITES] if place.is_interpreter else []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _SOURCES},
        limit=trees.PIECE,
    )
    assert child.stdout is not None
    try:
        while piece := await child.stdout.read(trees.PIECE):
            writer.write(piece)
            async with asyncio.timeout(_STALLED):
                await writer.drain()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()
