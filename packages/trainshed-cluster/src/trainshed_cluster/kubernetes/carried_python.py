"""Copies the Python that it is run by, with the libraries that that needs, into a directory: run by the init
container of Pods whose image is a job's, which need have neither a Python nor a C library of ours.

    python -I -S -c SOURCE DIRECTORY

It imports the standard library alone and nothing of ours. The copy is started by its own dynamic loader
(`LOADER`), and finds its libraries beside that.
"""

import ctypes
import functools
import os
import shutil
import sys
from pathlib import Path

LOADER = "ld.so"
"""Of shared libraries, in `lib`."""
_NAMED = (
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
)
"""Libraries that compiled packages of others may name (manylinux), whether this Python does or not."""
_LEFT_OUT = ("test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter")


def main(target: Path) -> None:
    """Copy this Python into a directory. Raises SystemExit if it cannot be copied."""
    standard = Path(os.__file__).parent
    libraries = target / "lib"
    shutil.copytree(
        standard,
        libraries / standard.name,
        ignore=shutil.ignore_patterns(*_LEFT_OUT, "config-*"),
        dirs_exist_ok=True,
    )
    loader = ""
    for path in _loaded(standard / "lib-dynload"):
        shutil.copy(path, libraries / path.name)
        for name in _links(path.parent).get(path, ()):
            (libraries / name).symlink_to(path.name)
        if path.name.startswith("ld-"):
            loader = path.name
    if not loader:
        raise SystemExit(f"{sys.executable} has no loader of glibc's: it cannot be carried")
    (libraries / LOADER).symlink_to(loader)
    (target / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), target / "bin" / "python3")


def _loaded(extensions: Path) -> "list[Path]":
    """Return the shared libraries that this Python loads, with those of all its extension modules."""
    for name in (*map(str, extensions.iterdir()), *_NAMED):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue  # An extension that this image cannot load is not used by anything in it.
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = {Path(line[line.index("/") :].rstrip("\n")) for line in maps if "/" in line}
    return sorted(path for path in paths if ".so" in path.name and path.parent != extensions)


@functools.lru_cache
def _links(directory: Path) -> "dict[Path, list[str]]":
    """Return the links to shared libraries in a directory, by what they lead to: other names of theirs, which
    dependent libraries may ask for."""
    links: dict[Path, list[str]] = {}
    for path in directory.iterdir():
        if ".so" in path.name and path.is_symlink():
            links.setdefault(path.resolve(), []).append(path.name)
    return links


if __name__ == "__main__":
    main(Path(sys.argv[1]))
