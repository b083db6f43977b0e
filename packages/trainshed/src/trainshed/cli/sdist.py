"""Makes a source distribution of a directory, so that a job's replicas can install it.

Owns which files of a user's tree belong into the archive, and its bytes: the same files make the same
archive, so that a package that was uploaded before is recognised. Runs no code of what it packs (no
`setup.py`), and uploads nothing.
"""

import ast
import configparser
import gzip
import io
import os
import re
import stat
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

DEMO_MODULE = "trainshed_demo.task"
"""The demo job's module, for `pythonModule`."""
DEMO_TUNING_MODULE = "trainshed_demo.tuning"
"""The module of the demo's tuning trials."""

_DEMO_VERSION = "1.0"

# Time of all files, in seconds since 1970. Wheels built from the archive are zip files, which have no times
# before 1980; one day later, because times in zip files are local.
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
        filename: `name-version.tar.gz`, with the name normalised as installers expect it.
        content: The archive's bytes.
    """

    filename: str
    content: bytes


def demo_program_directory() -> Path:
    """Return the directory of the demo job's program, which users may read and copy."""
    return Path(__file__).with_name("demo_program")


def build_demo_sdist() -> Sdist:
    """Return the demo job's program as a source distribution."""
    return build_sdist(demo_program_directory(), name="trainshed-demo", version=_DEMO_VERSION)


def build_sdist(directory: Path, *, name: str, version: str) -> Sdist:
    """Pack a directory as a source distribution. Blocks on the disk only.

    A `setup.py` is added if there is neither one nor a `pyproject.toml`. Left out are hidden files, byte
    code, virtual environments, and what earlier builds left (`build`, `dist`, `*.egg-info`). Of times, owners
    and permissions only "executable" is kept.

    Args:
        directory: The project's root, the parent of its packages.
        name: The distribution's name; the directory's own `setup.py` should give the same.
        version: Its version; the same holds.

    Raises:
        PackagingError: The name or the version is not valid, or the tree holds nothing to pack, or something
            that cannot be packed.
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
    """Yield (path below the directory, file) for the files of a directory that belong to its program; those
    that `build_sdist` names are left out. Raises PackagingError while iterating."""
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
    # Without the time and the file name that gzip stores by default, which differ between runs.
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


def build_project(directory: Path) -> Sdist:
    """Make a source distribution of a project, with the project's own name. Raises PackagingError."""
    name, version = project_title(directory)
    try:
        return build_sdist(directory, name=name, version=version)
    except PackagingError as failure:
        raise PackagingError(f"{directory} cannot be packed: {failure}") from failure


def project_title(directory: Path) -> tuple[str, str]:
    """Return a project's own name and version, read without running its code; "0" if the version is not
    known. Raises PackagingError if the name is not known."""
    metadata: dict[str, str] = {}
    try:
        if (file := directory / "pyproject.toml").is_file():
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            project: dict[str, Any] = (
                table.get("project") or table.get("tool", {}).get("poetry") or {}
            )
            metadata |= {key: text for key, text in project.items() if isinstance(text, str)}
        if (file := directory / "setup.cfg").is_file():
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(file.read_text(encoding="utf-8"))
            metadata = (dict(parser["metadata"]) if "metadata" in parser else {}) | metadata
        if (file := directory / "setup.py").is_file():
            metadata = _keywords(file.read_text(encoding="utf-8")) | metadata
    except (OSError, ValueError, SyntaxError, configparser.Error) as failure:
        raise PackagingError(f"The project in {directory} cannot be read: {failure}.") from failure
    if not metadata.get("name"):
        raise PackagingError(
            f"The name of the project in {directory} cannot be told without running it. Build it (python3 "
            "-m build --sdist) and run what was built (trainshed run dist/NAME.tar.gz --module NAME.MODULE)."
        )
    version = metadata.get("version", "")
    return metadata["name"], version if version[:1].isdigit() else "0"


def _keywords(source: str) -> dict[str, str]:
    """Return the keyword arguments of the calls of `setup(...)` whose values are text literals."""
    texts: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[keyword.arg] = value.value
    return texts
