"""Finds the directories that an environment refers to by absolute paths: its interpreter, and the environment
that it extends.

The references are in `pyvenv.cfg` (`home`), in links of `bin` and of the standard library, and in path files
of `site-packages`. Links in a container image do not count, because they refer to paths in the image.

The files come from users' packages. To prevent path traversal, this module follows no links. It also limits
how much it reads.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MAX_FILE_BYTES = 1 << 16
"""Maximum number of bytes that are read from one file."""
_LINK_DIRECTORIES = ("", "bin", "lib", "lib/python*", "template", "template/bin", "include")
_SITE_PACKAGES = ("lib/python*/site-packages", "template/lib/python*/site-packages")


def find_references(unit: Path) -> tuple[str, ...]:
    """Return the directories outside a unit to which it refers, as sorted absolute paths. A unit is a
    directory that is sent to nodes as a whole. Raises OSError."""
    mentioned = {os.path.normpath(path) for path in _find_paths(unit)}
    return tuple(sorted(path for path in mentioned if not Path(path).is_relative_to(unit)))


def _find_paths(unit: Path) -> Iterator[str]:
    for configuration in (unit / "pyvenv.cfg", unit / "template" / "pyvenv.cfg"):
        for line in _lines(configuration):
            name, _, value = line.partition("=")
            if name.strip() == "home" and value.strip().startswith("/"):
                yield value.strip()
    for pattern in _LINK_DIRECTORIES:
        for directory in _directories(unit, pattern):
            for entry in os.scandir(directory):
                if entry.is_symlink() and (target := Path(entry.path).readlink()).is_absolute():
                    # The environment needs the whole directory of the link's target.
                    yield str(target.parent)
    for pattern in _SITE_PACKAGES:
        for directory in _directories(unit, pattern):
            for entry in os.scandir(directory):
                if entry.name.endswith(".pth"):
                    yield from (line for line in _lines(Path(entry.path)) if line.startswith("/"))


def _directories(unit: Path, pattern: str) -> Iterator[Path]:
    """Yield the existing directories that match a pattern, without following links."""
    directories = [unit]
    for part in Path(pattern).parts:
        below = [path for directory in directories for path in directory.glob(part)]
        directories = [path for path in below if not path.is_symlink() and path.is_dir()]
    yield from directories


def _lines(path: Path) -> list[str]:
    """Return the first lines of a regular file. Returns no lines if the path is missing or is not a regular
    file."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return []
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    with open(handle, "rb") as file:  # noqa: PTH123 -- opens a descriptor
        text = file.read(_MAX_FILE_BYTES).decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if "\0" not in line]
