"""Checks packages before an installer opens them: their unpacked size, and their build requirements.

The author of an archive controls all of its content. So the check runs inside the sandbox of setup scripts,
in the first process of an installation, and limits everything that it reads (`InstallationTerms`).
"""

import codecs
import lzma
import re
import resource
import signal
import struct
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from trainshed.runtimes.confinement import MAX_MEMBERS, MAX_MEMORY, MAX_METADATA, MAX_SECONDS, MAX_UNPACKED

_METADATA = ("pyproject.toml", "PKG-INFO", "METADATA", "setup.py", "setup.cfg")
_PLAIN_REQUIREMENT = re.compile(
    r"(wheel\s*(>=[\d.\s]+)?|setuptools\s*(>=\s*([1-5]?\d|6[0-8])(\.[\d.]*)?\s*)?)"
)
"""Build requirements that the setuptools and wheel of every runtime satisfy."""
_WHEEL_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_ZIPS = (".zip", ".whl")
_BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, struct.error, zlib.error, lzma.LZMAError),
    *(tarfile.TarError, zipfile.BadZipFile),
    # The archive modules raise this for an unknown compression method, or if the archive has a password.
    RuntimeError,
)
_CODECS = ("utf-8", "ascii", "latin-1", "cp437")
_AUTOLOGGING = re.compile(
    r"^Requires-Dist: *google[-_.]cloud[-_.]aiplatform *\[[^\]]*autologging", re.IGNORECASE | re.MULTILINE
)
_NAMES_MLFLOW = re.compile(r"^Requires-Dist: *mlflow *(?![-_.\w])", re.IGNORECASE | re.MULTILINE)
_AUTOLOGGED = "mlflow<3"
"""Requirement that is added for a package with the autologging extra, which requires MLflow. From Python 3.13
on, the extra allows any MLflow, but with MLflow 3 it silently logs nothing."""


class ArchiveRejected(Exception):
    """Raised if an archive exceeds a limit. The message contains the limit."""


def load() -> None:
    """Load the codecs that the check needs to decode names. Call this before entering the sandbox, where the
    standard library may be invisible."""
    for name in _CODECS:
        codecs.lookup(name)


def are_buildable(paths: Iterable[str]) -> bool:
    """Check archives. Return whether each of them is a wheel, or a package that the runtime's own setuptools
    can build. Raises ArchiveRejected."""
    with _limit_resources():
        plain = [is_buildable(Path(path)) for path in paths]
    return all(plain)


def metadata_of_wheels(paths: Iterable[str]) -> list[str]:
    """Return the metadata texts of the wheels among the archives. Call this after `are_buildable` has
    accepted the archives. Raises ArchiveRejected."""
    with _limit_resources():
        return [_wheel_metadata(Path(path)) for path in paths if path.endswith(".whl")]


def missing_requirements(metadata: Sequence[str]) -> tuple[str, ...]:
    """Return the requirements to add, because the packages need them but do not declare them. `metadata`: the
    metadata texts of the packages' wheels."""
    asks = any(map(_AUTOLOGGING.search, metadata)) and not any(map(_NAMES_MLFLOW.search, metadata))
    return (_AUTOLOGGED,) if asks else ()


def is_buildable(path: Path, most_unpacked: int = MAX_UNPACKED) -> bool:
    """Check an archive. Return whether it is a wheel, or a source distribution that the runtime's own
    setuptools can build. Such a build needs neither a separate environment (half a second) nor a package
    index.

    The result is False for distributions with other build requirements. It is also False for unreadable
    files, because installers report better errors for them. Raises ArchiveRejected.
    """
    if path.stat().st_size > most_unpacked:
        raise _rejection(path, f"is larger than {_size(most_unpacked)}, which is the limit")
    try:
        is_zip = path.suffix in _ZIPS
        text = _zip_project(path, most_unpacked) if is_zip else _tar_project(path, most_unpacked)
        if path.suffix == ".whl":
            return True
        return text is not None and _is_plain(tomllib.loads(text.decode()).get("build-system", {}))
    except RecursionError:
        raise _rejection(path, "contains a pyproject.toml that is nested too deeply") from None
    except MemoryError:
        what = f"cannot be opened with {_size(MAX_MEMORY)} of memory, which is the limit"
        raise _rejection(path, what) from None
    except _BROKEN:
        return False


def _is_plain(build: object) -> bool:
    if not isinstance(build, dict):
        return False
    table = cast("dict[str, object]", build)
    requires = table.get("requires", [])
    plain = isinstance(requires, list) and all(
        _PLAIN_REQUIREMENT.fullmatch(str(text)) for text in cast("list[object]", requires)
    )
    backend = str(table.get("build-backend", "setuptools.build_meta"))
    return plain and backend.startswith("setuptools.build_meta")


# --- zip ---


def _zip_project(path: Path, most: int) -> bytes | None:
    """Return the text of the project's pyproject.toml, or an empty text if it has none. Raises
    ArchiveRejected."""
    # Opening the archive reads the whole list of its members. The memory of this process is limited, so even
    # a huge list is harmless.
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_members(path, len(members))
        _check_unpacked(path, sum(info.file_size for info in members), most)
        text = b""
        for info in members:
            if _is_metadata(info.filename):
                content = _read(path, info.filename, archive.open(info))
                text = content if _is_project(info.filename) else text
        return text


def _wheel_metadata(path: Path) -> str:
    """Return a wheel's metadata, or "" if the metadata are unreadable. This is no error here, because
    installers report better errors."""
    with suppress(*_BROKEN), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _WHEEL_METADATA.fullmatch(name):
                return _read(path, name, archive.open(name)).decode(errors="replace")
    return ""


# --- tar ---


def _tar_project(path: Path, most: int) -> bytes | None:
    text, unpacked, count = b"", 0, 0
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        while (member := archive.next()) is not None:
            # Empty this list. Otherwise the archive object would keep all members in memory.
            cast("Any", archive).members = []
            count, unpacked = count + 1, unpacked + member.size
            _check_members(path, count)
            _check_unpacked(path, unpacked, most)
            if member.isreg() and _is_metadata(member.name):
                content = archive.extractfile(member)
                assert content is not None
                read = _read(path, member.name, content)
                text = read if _is_project(member.name) else text
    return text


# --- both ---


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in _METADATA


def _is_project(name: str) -> bool:
    """Return whether the file is the pyproject.toml of a top-level directory."""
    return name.removeprefix("./").partition("/")[2] == "pyproject.toml"


def _read(path: Path, name: str, content: IO[bytes]) -> bytes:
    with content:
        text = content.read(MAX_METADATA + 1)
    if len(text) > MAX_METADATA:
        what = f"contains a {name} of more than {_size(MAX_METADATA)}, which is the limit"
        raise _rejection(path, what)
    return text


def _check_members(path: Path, count: int) -> None:
    if count > MAX_MEMBERS:
        what = f"contains more than {MAX_MEMBERS} files and directories, which is the limit"
        raise _rejection(path, what)


def _check_unpacked(path: Path, size: int, most: int) -> None:
    if size > most:
        raise _rejection(path, f"unpacks to more than {_size(most)}, which is the limit")


def _rejection(path: Path, what: str) -> ArchiveRejected:
    """Return the error about an archive. `what`: what the archive does, such as "contains no files"."""
    return ArchiveRejected(f"The package {path} was rejected, because the archive {what}.")


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size < 1 << 30 else f"{size / 2**30:g} GiB"


@contextmanager
def _limit_resources() -> Generator[None]:
    """Limit the processor time and memory of this process while the context is open. Use it only in the main
    thread of a process that does not use SIGPROF otherwise."""

    def late(number: int, frame: object) -> None:
        raise ArchiveRejected(
            f"The packages were rejected, because checking them takes more than {MAX_SECONDS:g} seconds of "
            "processor time, which is the limit. Use smaller packages."
        )

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    restore = _limit_memory()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        restore()


def _limit_memory() -> Callable[[], None]:
    """Limit the memory of this process; return a function that restores the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    wanted = pages * resource.getpagesize() + MAX_MEMORY
    if soft == resource.RLIM_INFINITY or wanted < soft:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
