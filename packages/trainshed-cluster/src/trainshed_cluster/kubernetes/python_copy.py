"""Copies the Python that runs this module, with its libraries, into a directory.

    python -I -S -c SOURCE DIRECTORY

The init container of Pods with a job's image runs this module, because the job's image may lack a suitable
Python or C library. The module uses only the standard library. The copy is started by its own dynamic loader
(`LOADER`), and finds its libraries next to it.
"""

import ctypes
import functools
import os
import shutil
import sys
from pathlib import Path

LOADER = "ld.so"
"""The dynamic loader, in `lib`."""
_EXTRA_LIBRARIES = (
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
)
"""Libraries that compiled packages may require (manylinux), in addition to the libraries of this Python."""
_EXCLUDED_DIRECTORIES = (
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "idlelib",
    "tkinter",
)


def main(target: Path) -> None:
    """Copy this Python into the directory `target`. Raises SystemExit if this Python cannot be copied."""
    standard = Path(os.__file__).parent
    libraries = target / "lib"
    shutil.copytree(
        standard,
        libraries / standard.name,
        ignore=shutil.ignore_patterns(*_EXCLUDED_DIRECTORIES, "config-*"),
        dirs_exist_ok=True,
    )
    loader = ""
    for path in _shared_libraries(standard / "lib-dynload"):
        shutil.copy(path, libraries / path.name)
        for name in _links(path.parent).get(path, ()):
            (libraries / name).symlink_to(path.name)
        if path.name.startswith("ld-"):
            loader = path.name
    if not loader:
        raise SystemExit(
            f"{sys.executable} cannot be copied, because it does not use the loader of glibc; use a Python "
            "that is built for glibc"
        )
    (libraries / LOADER).symlink_to(loader)
    (target / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), target / "bin" / "python3")


def _shared_libraries(extensions: Path) -> "list[Path]":
    """Return the shared libraries that this Python and its extension modules use."""
    for name in (*map(str, extensions.iterdir()), *_EXTRA_LIBRARIES):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue  # Skip a library that even this image cannot load.
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = {Path(line[line.index("/") :].rstrip("\n")) for line in maps if "/" in line}
    return sorted(path for path in paths if ".so" in path.name and path.parent != extensions)


@functools.lru_cache
def _links(directory: Path) -> "dict[Path, list[str]]":
    """Return the names of a directory's links to shared libraries, by the link's target. Other libraries may
    refer to a library by the name of a link."""
    links: dict[Path, list[str]] = {}
    for path in directory.iterdir():
        if ".so" in path.name and path.is_symlink():
            links.setdefault(path.resolve(), []).append(path.name)
    return links


if __name__ == "__main__":
    main(Path(sys.argv[1]))
