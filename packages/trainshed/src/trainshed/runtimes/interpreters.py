"""Finds the Python interpreters of this machine: their paths, versions and standard libraries.

The one that runs the service is known without a search. The others (PATH, pyenv, uv's own) are each run once
when that is first needed, or earlier in a thread.
"""

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.runtimes.families import Minor

_PROBE_SECONDS = 20
_USUAL: Minor = (3, 11)
_PROBE = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
config = sysconfig.get_config_vars()
print(sys.implementation.name == "cpython" and json.dumps({
    "version": list(sys.version_info[:3]),
    "executable": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
    "prefix": sys.base_prefix,
    "stdlib": paths["stdlib"],
    "include": paths["include"],
    "library_directory": config.get("LIBDIR") or "",
}))
"""


class Interpreter(Struct, frozen=True):
    """A CPython outside any virtual environment. Paths are absolute; `executable` is not a shim."""

    executable: str
    version: tuple[int, int, int]
    prefix: str
    stdlib: str
    include: str
    library_directory: str

    @property
    def minor(self) -> Minor:
        return self.version[:2]

    @property
    def places(self) -> tuple[str, ...]:
        """Directories that it consists of and that other users may not be able to reach, because they are in
        a home directory, for example."""
        everybodys = self.prefix in ("/", "/usr", "/usr/local")
        return (self.stdlib,) if everybodys else (self.prefix, self.stdlib)

    @property
    def full_version(self) -> str:
        return ".".join(str(part) for part in self.version)


def running_interpreter() -> Interpreter:
    """Return the interpreter of this process (its base, if this is a virtual environment)."""
    paths = sysconfig.get_paths()
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return Interpreter(
        executable=str(Path(base).resolve()),
        version=sys.version_info[:3],
        prefix=sys.base_prefix,
        stdlib=paths["stdlib"],
        include=paths["include"],
        library_directory=str(sysconfig.get_config_var("LIBDIR") or ""),
    )


class Interpreters:
    """The interpreters of this machine. Safe to use from several threads."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._own = running_interpreter()
        self._lock = threading.Lock()
        self._all: tuple[Interpreter, ...] | None = None

    def usual(self) -> Minor:
        """Return the Python for programs that ask for no other: 3.11 if it is found, else the service's own.
        So it is the same for services on different Pythons, and no newer than those that its packages are
        built for."""
        own = self._own.minor
        return _USUAL if own == _USUAL or _USUAL in self.found() else own

    def found(self) -> Sequence[Minor]:
        """Return every Python found, highest first. The first call searches (under a second)."""
        return sorted({interpreter.minor for interpreter in self.search()}, reverse=True)

    def get(self, python: Minor) -> Interpreter | None:
        """Return the interpreter of that version: the service's own if it fits, else the one of the highest
        patch level; None if there is none."""
        if python == self._own.minor:
            return self._own
        fitting = [interpreter for interpreter in self.search() if interpreter.minor == python]
        return max(fitting, key=lambda interpreter: interpreter.version, default=None)

    def search(self) -> tuple[Interpreter, ...]:
        """Search the machine once; blocks while it runs interpreters."""
        with self._lock:
            if self._all is None:
                interpreters = {self._own.executable: self._own}
                for path in dict.fromkeys(self._places()):
                    if interpreter := _probe(path):
                        interpreters.setdefault(interpreter.executable, interpreter)
                self._all = tuple(interpreters.values())
            return self._all

    def _places(self) -> Iterator[Path]:
        home = Path(self._environ.get("HOME") or "/nonexistent")
        pyenv = Path(self._environ.get("PYENV_ROOT") or home / ".pyenv")
        uv = Path(
            self._environ.get("UV_PYTHON_INSTALL_DIR")
            or Path(self._environ.get("XDG_DATA_HOME") or home / ".local" / "share")
            / "uv"
            / "python"
        )
        for pattern, root in (("versions/3.*/bin", pyenv), ("cpython-3.*/bin", uv)):
            yield from _executables(_listed(root, pattern))
        path = (Path(entry) for entry in self._environ.get("PATH", "").split(os.pathsep) if entry)
        # pyenv's shims may stand for a version that is missing; the real interpreters were listed above.
        yield from _executables(entry for entry in path if entry.name != "shims")


def _listed(directory: Path, pattern: str) -> list[Path]:
    """Return the paths that match the pattern, sorted; none where this user has no access, such as in another
    user's home."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _executables(directories: Iterable[Path]) -> Iterator[Path]:
    for directory in directories:
        for path in _listed(directory, "python3.*"):
            if path.name.removeprefix("python3.").isdigit() and os.access(path, os.X_OK):
                yield path.resolve()


def _probe(path: Path) -> Interpreter | None:
    """Run an interpreter once and ask it; None if it is no CPython, or does not answer."""
    try:
        answer = subprocess.run(
            [str(path), "-I", "-c", _PROBE],
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return msgspec.json.decode(answer.stdout, type=Interpreter)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None
