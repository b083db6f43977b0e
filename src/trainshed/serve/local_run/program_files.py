"""The files of a local run's program: selects what is copied into its working directory, and what is
installed.

It does so like the public command (facts/packaging#autopackaging): it copies the directory of the script or
module and extra directories, and installs what `setup.py`, `requirements.txt` and the options name. A module
of a project is not copied, but installed, as a job's package is.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trainshed.cli.projects import build_project, is_project
from trainshed.cli.requirements import (
    REQUIREMENTS_WHEEL,
    read_requirements,
    requirement,
    requirements_wheel,
)
from trainshed.cli.sdist import PackagingError
from trainshed.replica.supervisor import program
from trainshed.runtimes.port import PackageSource
from trainshed.serve.local_run.request import LocalRunRequest, NotRun

BUCKET = "trainshed-local-run"
"""The bucket in the URIs of a local run's packages. No such bucket exists: nothing is uploaded."""

APP = "/usr/app"
"""The program's directory in a container image, as for the public command (facts/packaging#autopackaging)."""
_LEFT_OUT = frozenset({"__pycache__", "node_modules", ".git", ".hg", ".svn"})


@dataclass(frozen=True, slots=True)
class LocalPackage:
    """A package with the URI by which its job names it."""

    uri: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """The parts of a program that are installed, and those that are copied."""

    #: Packages, in the order in which they are installed.
    parcels: tuple[LocalPackage, ...]
    #: Paths in the program's directory that are copied; () = nothing.
    trees: tuple[str, ...]


def pack(request: LocalRunRequest) -> ProgramFiles:
    """Collect the files of the program, and pack a project as a source distribution. Blocks only on the disk,
    and runs nothing of the program. Raises NotRun."""
    if not request.entry:
        return ProgramFiles((), ())
    project = is_project(request.directory)
    parcels = [_project(request.directory)] if project else []
    parcels += [_parcel(path.name, path.read_bytes()) for path in request.extra_packages]
    needed = _needed(request, project=project)
    if needed:
        parcels.append(_parcel(REQUIREMENTS_WHEEL, requirements_wheel(needed)))
    return ProgramFiles(tuple(parcels), _trees(request, project=project))


def is_installed(request: LocalRunRequest) -> bool:
    """Whether the program is a module of a package that gets installed, as in a job with a Python package."""
    return bool(request.module) and is_project(request.directory)


class LocalPackages:
    """A `runtimes.port.PackageSource` for local packages, and for the real buckets in all other cases."""

    def __init__(
        self, parcels: Iterable[LocalPackage], others: Callable[[], PackageSource]
    ) -> None:
        self._parcels = {parcel.uri: parcel for parcel in parcels}
        self._others = others

    def open(self, uri: str) -> BinaryIO:
        """Open the package, as the protocol says."""
        if parcel := self._parcels.get(uri):
            return io.BytesIO(parcel.content)
        return self._others().open(uri)

    def fingerprint(self, uri: str) -> str:
        """Return the fingerprint, as the protocol says; a local package's URI contains its checksum."""
        return "content" if uri in self._parcels else self._others().fingerprint(uri)


def _parcel(name: str, content: bytes) -> LocalPackage:
    digest = hashlib.sha256(content).hexdigest()[:16]
    return LocalPackage(f"gs://{BUCKET}/{digest}/{name}", content)


def _needed(request: LocalRunRequest, *, project: bool) -> list[str]:
    """Return the requirements to install besides packages: those of the requirements file, unless the
    directory is a project, and those of the option."""
    requirements: list[str] = []
    file = request.directory / "requirements.txt"
    if file.is_file() and not project:
        try:
            requirements += read_requirements(file)
        except PackagingError as failure:
            raise NotRun(str(failure)) from None
    for text in request.requirements:
        try:
            requirements.append(requirement(text))
        except ValueError as fault:
            raise NotRun(f"--requirements: {text!r}: {fault}.") from None
    return requirements


def _trees(request: LocalRunRequest, *, project: bool) -> tuple[str, ...]:
    if request.module and project:
        return request.extra_dirs
    parent = str(PurePosixPath(request.entry).parent)
    return tuple(dict.fromkeys((parent, *request.extra_dirs)))


def _project(directory: Path) -> LocalPackage:
    try:
        made = build_project(directory)
    except PackagingError as failure:
        raise NotRun(str(failure)) from failure
    return _parcel(made.filename, made.content)


def copy_program(files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path]) -> None:
    """Copy `trees` of the program's `directory` into the working directory of a slot's `files`. `away`:
    directories that are left out. Raises OSError."""
    work = files / program.WORK
    work.mkdir(mode=0o700, parents=True)
    _copy(directory, trees, work, away)


def copy_into_image(
    files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path], *, owner: int
) -> None:
    """Do the same for a program in a container image, as if the image contained the files. `owner`: the
    machine's user that is root in the image, 0 = the current user."""
    upper = files / program.LAYER / "upper"
    place = upper
    for name in APP.strip("/").split("/"):
        place /= name
        place.mkdir(parents=True)
        place.chmod(0o755)
        if owner:
            os.chown(place, owner, owner)
    _copy(directory, trees, place, away)
    _give(place, owner)


def write_packages(parcels: Iterable[LocalPackage], packages: Path) -> None:
    """Write packages to where an image's own installer finds them. Raises OSError."""
    packages.mkdir(mode=0o755)
    for parcel in parcels:
        place = packages / parcel.uri.removeprefix(f"gs://{BUCKET}/")
        place.parent.mkdir(mode=0o755)
        place.write_bytes(parcel.content)
        place.chmod(0o644)


def _copy(directory: Path, trees: Iterable[str], target: Path, away: Sequence[Path]) -> None:
    """Copy parts of a program's directory into a working directory. `away`: directories that are left out.
    Raises OSError."""
    places = {path.resolve() for path in away}

    def unwanted(parent: str, names: list[str]) -> set[str]:
        here = Path(parent)
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or name.endswith(".pyc")
            or (here / name / "pyvenv.cfg").is_file()
            or (here / name).resolve() in places
        }

    for tree in trees:
        shutil.copytree(
            directory / tree, target / tree, symlinks=True, ignore=unwanted, dirs_exist_ok=True
        )


def _give(directory: Path, user: int) -> None:
    """Give a tree to another user. The program may end up as yet another one, so all users may read the tree,
    and write to its top. Raises OSError."""
    directory.chmod(0o777)
    for parent, names, files in os.walk(directory):
        for path in (Path(parent), *(Path(parent, name) for name in (*names, *files))):
            if not path.is_symlink():
                mode = path.stat().st_mode & 0o7777
                path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
            if user:
                os.chown(path, user, user, follow_symlinks=False)
