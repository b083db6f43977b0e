"""Finds the files of a user's tree that belong to its program, and packs a project's, so that a job's
replicas can install it.

The same files make the same archive, so that a package that was uploaded before is recognised. Runs no code
of what it packs (no `setup.py`).
"""

import gzip
import io
import os
import stat
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

PROJECT_ARCHIVE = "project.tar.gz"
"""The file name of a packed project. Its own metadata tell installers what it is called."""

# Time of all files, in seconds since 1970. Wheels built from the archive are zip files, which have no times
# before 1980; one day later, because times in zip files are local.
_TIME = 315_619_200

_LEFT_OUT_ANYWHERE = frozenset({"__pycache__", "node_modules"})
_LEFT_OUT_AT_THE_TOP = frozenset({"build", "dist", "venv"})
_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", "~")


class PackagingError(Exception):
    """The directory cannot be packed; the message says why and what to do."""


def is_project(directory: Path) -> bool:
    """Whether a directory defines how it is installed. A `pyproject.toml` may be there for other tools
    only."""
    if (directory / "setup.py").is_file():
        return True
    try:
        table = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool({"project", "build-system"} & table.keys())


def pack_project(directory: Path) -> bytes:
    """Return an archive (.tar.gz) of a project, which installers take as they take a source distribution. Of
    times, owners and permissions only "executable" is kept. Raises PackagingError."""
    made = io.BytesIO()
    # Without the time and the file name that gzip stores by default, which differ between runs.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0) as compressed,
        tarfile.open(mode="w", fileobj=compressed, format=tarfile.PAX_FORMAT) as archive,
    ):
        for relative, path in sorted(project_files(directory)):
            content = read_file(path)
            entry = tarfile.TarInfo(f"project/{relative}")
            entry.size = len(content)
            entry.mode = 0o755 if is_executable(path) else 0o644
            entry.mtime = _TIME
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def project_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path below the directory, file) for the files of a directory that belong to its program. Left
    out are hidden files, byte code, virtual environments, and what earlier builds left (`build`, `dist`,
    `*.egg-info`). Raises PackagingError while iterating."""
    return ((path.relative_to(directory).as_posix(), path) for path in _files(directory))


def size_of(file: Path) -> int:
    """Return the bytes of an ordinary file. Raises PackagingError."""
    try:
        status = file.stat()
    except OSError as error:
        _refuse(error)
    if not stat.S_ISREG(status.st_mode):
        raise PackagingError(f"{file} is not an ordinary file. Move it out of the directory.")
    return status.st_size


def read_file(file: Path) -> bytes:
    """Return the content of a file. Raises PackagingError."""
    try:
        return file.read_bytes()
    except OSError as error:
        _refuse(error)


def is_executable(file: Path) -> bool:
    """Whether its owner may execute a file."""
    return bool(file.stat().st_mode & stat.S_IXUSR)


def _files(directory: Path) -> Iterator[Path]:
    for parent, directories, files in os.walk(directory, onerror=_refuse):
        here = Path(parent)
        top = here == directory
        directories[:] = [name for name in directories if not _is_left_out(here / name, top=top)]
        for name in directories:
            if (here / name).is_symlink():
                raise PackagingError(
                    f"{here / name} is a link to a directory, and those are not packed. Replace it"
                    " by the directory itself, or move it out of the tree."
                )
        yield from (here / name for name in files if not _is_left_out(here / name, top=top))


def _is_left_out(path: Path, *, top: bool) -> bool:
    return (
        path.name.startswith(".")
        or path.name in _LEFT_OUT_ANYWHERE
        or path.name.endswith(_LEFT_OUT_ENDINGS)
        or (top and path.name in _LEFT_OUT_AT_THE_TOP)
        or (path / "pyvenv.cfg").is_file()
    )


def _refuse(error: OSError) -> NoReturn:
    raise PackagingError(
        f"Cannot read {error.filename}: {error.strerror}. Make it readable, or move it out of the"
        " tree that is packed."
    ) from error
