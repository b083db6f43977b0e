"""Builds the image of the lab's Pods from this machine's files: the Python of the tests, a shell, and their
libraries.

The Python of an image must have the service's version. deploy/pods/Containerfile builds real images.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

INTERPRETER = Path(sys.executable).resolve()
"""The Python of this machine, outside any environment."""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = f"/usr/bin/{_VERSION}"
"""Path of Python in the image."""
_COMMANDS = ("sh", "sleep", "cat", "ls", "env", "true", "ps", "head", "tail", "dd", "rm", "mkdir")
_LIBRARIES = (
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libm.so.6",
    "libgcc_s.so.1",
    "libstdc++.so.6",
)
"""Libraries that compiled packages require, but that come from other directories."""
_EXCLUDED_DIRECTORIES = (
    *("test", "tests", "site-packages", "dist-packages"),
    *("idlelib", "tkinter", "lib2to3", "ensurepip"),
)


def make(directory: Path) -> None:
    """Fill an empty directory with the files of the image."""
    library = Path(os.__file__).parent
    for name in ("tmp", "proc", "sys", "dev", "etc", "root", "var/lib/trainshed", "run", "usr/bin"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (directory / "usr" / name).mkdir(exist_ok=True)
        (directory / name).symlink_to(f"usr/{name}")
    (directory / "tmp").chmod(0o1777)
    shutil.copytree(
        library,
        directory / "usr/lib" / _VERSION,
        ignore=shutil.ignore_patterns(*_EXCLUDED_DIRECTORIES, "config-*"),
        dirs_exist_ok=True,
    )
    programs = [Path(program) for name in _COMMANDS if (program := shutil.which(name))]
    for path in programs:
        _copy(path, directory / "usr/bin" / path.name)
    _copy(INTERPRETER, directory / PYTHON.removeprefix("/"))
    (directory / "usr/bin/python3").symlink_to(_VERSION)
    libraries = Path("/usr/lib", f"{platform.machine()}-linux-gnu")
    needed = {str(libraries / name) for name in _LIBRARIES}
    for path in (INTERPRETER, *programs, *(library / "lib-dynload").glob("*.so")):
        output = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        needed.update(re.findall(r"(/\S+) \(0x", output))
    for name in needed:
        # In Pods, the service's Pythons replace the files of the image at the same paths. So the image's own
        # Python loads its library from the system's directory.
        beside = Path(name).is_relative_to(sys.base_prefix) and sys.base_prefix != "/usr"
        place = libraries / Path(name).name if beside else Path(name).resolve()
        _copy(Path(name), directory / place.relative_to("/"))
        if beside:
            continue
        link = directory / Path(name).relative_to("/")
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            _copy(Path(name), link)
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\njob:x:1000:1000:job:/tmp:/bin/sh\n")
    (directory / "etc/group").write_text("root:x:0:\njob:x:1000:\n")
    shutil.copytree("/usr/share/zoneinfo/Etc", directory / "usr/share/zoneinfo/Etc", dirs_exist_ok=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)
