"""Puts a program's files where it begins: into its slot before it starts, or into its own layer of a container image."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainshed.replica import program
from trainshed.serve.local_run.packing import BUCKET, Parcel

APP = "/usr/app"
"""Where the program's directory is in a container image, as the public command has it (facts §5.5)."""

_LEFT_OUT = frozenset({"__pycache__", "node_modules", ".git", ".hg", ".svn"})


def furnish(files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path]) -> None:
    """Copy `trees` of the program's `directory` into the working directory of a slot's `files`. `away`: directories that stay
    out. Raises OSError."""
    work = files / program.WORK
    work.mkdir(mode=0o700, parents=True)
    _copy(directory, trees, work, away)


def furnish_image(
    files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path], *, owner: int
) -> None:
    """The same for a program of a container image: as if the image had them. `owner`: the machine's user that is root there,
    0 = it is whoever we are."""
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


def lay_out(parcels: Iterable[Parcel], packages: Path) -> None:
    """Put packages where an image's own installer finds them. Raises OSError."""
    packages.mkdir(mode=0o755)
    for parcel in parcels:
        place = packages / parcel.uri.removeprefix(f"gs://{BUCKET}/")
        place.parent.mkdir(mode=0o755)
        place.write_bytes(parcel.content)
        place.chmod(0o644)


def _copy(directory: Path, trees: Iterable[str], target: Path, away: Sequence[Path]) -> None:
    """Copy parts of a program's directory into a working directory. `away`: directories that stay out. Raises OSError."""
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
    """Have a tree belong to another user, who may not be the one that the program ends up as: all may read it, and write to
    its top. Raises OSError."""
    directory.chmod(0o777)
    for parent, names, files in os.walk(directory):
        for path in (Path(parent), *(Path(parent, name) for name in (*names, *files))):
            if not path.is_symlink():
                mode = path.stat().st_mode & 0o7777
                path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
            if user:
                os.chown(path, user, user, follow_symlinks=False)
