"""Makes a source distribution of a directory, so that a job's replicas can install it.

Owns which files of a user's tree belong into the archive, and its bytes: the same files give the
same archive, so that an upload is recognised as one that is already there. Runs nothing of what it
packs (no `setup.py`), and uploads nothing.
"""

import gzip
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

DEMO_MODULE = "trainshed_demo.task"
"""The module of the demo job, for `pythonModule`."""
DEMO_TUNING_MODULE = "trainshed_demo.tuning"
"""That of the trials of its tuning job."""

_DEMO_VERSION = "1.0"

# A wheel built from the archive is a zip file, and those know no time before 1980. One day later,
# since zip times are local ones.
_TIME = 315_619_200

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")

_LEFT_OUT_ANYWHERE = frozenset({"__pycache__", "node_modules"})
_LEFT_OUT_AT_THE_TOP = frozenset({"build", "dist", "venv"})
_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", "~")

_SETUP = """\
from setuptools import find_packages, setup

setup(
    name={name!r},
    version={version!r},
    packages=find_packages(),
    package_data={{"": ["*"]}},
)
"""


class PackagingError(Exception):
    """The directory cannot be packed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source distribution.

    Attributes:
        filename: `name-version.tar.gz`, the name normalised as installers expect it.
        content: The archive.
    """

    filename: str
    content: bytes


def demo_program_directory() -> Path:
    """Where the demo job's program lies, to be read, copied and changed."""
    return Path(__file__).with_name("demo_program")


def build_demo_sdist() -> Sdist:
    """The demo job's program as a source distribution."""
    return build_sdist(demo_program_directory(), name="trainshed-demo", version=_DEMO_VERSION)


def build_sdist(directory: Path, *, name: str, version: str) -> Sdist:
    """Packs a directory as a source distribution. Blocks on the disk alone.

    A `setup.py` is added if there is neither one nor a `pyproject.toml`. Left out are hidden
    files, byte code, virtual environments, and what earlier builds left (`build`, `dist`,
    `*.egg-info`). Of times, owners and permissions only "executable" is kept.

    Args:
        directory: The project's root, the parent of its packages.
        name: The distribution's name; a `setup.py` of the directory's own should say the same.
        version: Its version, likewise.

    Raises:
        PackagingError: The name or the version is none, or the tree holds nothing to pack or
            something that cannot be packed.
    """
    if not _NAME.fullmatch(name):
        raise PackagingError(
            f"{name!r} cannot be the name of a package: it should begin and end with a letter or"
            " digit and hold only letters, digits, '.', '_' and '-'. Choose another name."
        )
    if not _VERSION.fullmatch(version):
        raise PackagingError(
            f"{version!r} cannot be the version of a package. Choose one like '1.0' or '0.2.dev3'."
        )
    files = dict(project_files(directory))
    if not any(relative.endswith(".py") for relative in files):
        raise PackagingError(
            f"There is no Python file to pack under {directory}. Name the directory that holds"
            " your package, or the package's own setup.py."
        )

    normalised = re.sub(r"[-_.]+", "_", name).lower()
    members = {relative: _member(path) for relative, path in files.items()}
    if not members.keys() & {"setup.py", "pyproject.toml"}:
        members["setup.py"] = _Member(_SETUP.format(name=name, version=version).encode())
    members["PKG-INFO"] = _Member(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    return Sdist(f"{normalised}-{version}.tar.gz", _archive(f"{normalised}-{version}", members))


def project_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """The files of a directory that belong to its program, each by its path below it; what is left out,
    `build_sdist` says. Raises PackagingError."""
    return ((path.relative_to(directory).as_posix(), path) for path in _files(directory))


@dataclass(frozen=True, slots=True)
class _Member:
    content: bytes
    executable: bool = False


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


def _member(path: Path) -> _Member:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise PackagingError(f"{path} is not an ordinary file. Move it out of the tree.")
        return _Member(path.read_bytes(), executable=bool(mode & stat.S_IXUSR))
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise PackagingError(
        f"Cannot read {error.filename}: {error.strerror}. Make it readable, or move it out of the"
        " tree that is packed."
    ) from error


def _archive(root: str, members: dict[str, _Member]) -> bytes:
    buffer = io.BytesIO()
    # The time and the file name that gzip stores by itself would differ from run to run.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as compressed,
        tarfile.open(mode="w", fileobj=compressed, format=tarfile.PAX_FORMAT) as archive,
    ):
        for relative, member in sorted(members.items()):
            entry = tarfile.TarInfo(f"{root}/{relative}")
            entry.size = len(member.content)
            entry.mode = 0o755 if member.executable else 0o644
            entry.mtime = _TIME
            archive.addfile(entry, io.BytesIO(member.content))
    return buffer.getvalue()
