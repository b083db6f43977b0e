"""Finds the Python interpreters of this machine: their paths, versions and standard libraries.

The service's own interpreter needs no search. Each of the others (on PATH, of pyenv, of uv) runs once when it
is first needed, or earlier in a thread.
"""

import ast
import contextlib
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.runtimes.families import Minor

_PROBE_TIMEOUT = 20
_USUAL: Minor = (3, 11)
_PROBE = """
import os, sys, sysconfig
paths = sysconfig.get_paths()
config = sysconfig.get_config_vars()
print(sys.implementation.name == "cpython" and {
    "version": sys.version_info[:3],
    "executable": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
    "prefix": sys.base_prefix,
    "stdlib": paths["stdlib"],
    "include": paths["include"],
    "library_directory": config.get("LIBDIR") or "",
})
"""
"""Code that an interpreter runs to print its properties. It imports little, because each start of a service
runs it in each interpreter of the machine."""


class Interpreter(Struct, frozen=True):
    """A CPython interpreter that is not in a virtual environment. Paths are absolute. `executable` is the
    interpreter itself, not a shim of pyenv."""

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
        """Directories of the interpreter that may be unreadable for other users, such as in a home
        directory."""
        is_shared = self.prefix in ("/", "/usr", "/usr/local")
        return (self.stdlib,) if is_shared else (self.prefix, self.stdlib)


def running_interpreter() -> Interpreter:
    """Return the interpreter of this process. In a virtual environment, return its base interpreter."""
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
    """The interpreters of this machine. Safe for several threads."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._own = running_interpreter()
        self._lock = threading.Lock()
        self._all: tuple[Interpreter, ...] | None = None

    def usual(self) -> Minor:
        """Return the Python for programs that require no version: 3.11 if this machine has it, otherwise the
        service's own. So all services usually choose the same version, for which packages have builds."""
        own = self._own.minor
        return _USUAL if own == _USUAL or _USUAL in self.found() else own

    def found(self) -> Sequence[Minor]:
        """Return every Python of the machine, highest version first. The first call searches, which takes
        less than a second."""
        return sorted({interpreter.minor for interpreter in self.search()}, reverse=True)

    def get(self, python: Minor) -> Interpreter | None:
        """Return the interpreter of that version, or None if there is none. The service's own interpreter is
        preferred, and then the one with the highest patch level."""
        if python == self._own.minor:
            return self._own
        fitting = [interpreter for interpreter in self.search() if interpreter.minor == python]
        return max(fitting, key=lambda interpreter: interpreter.version, default=None)

    def search(self) -> tuple[Interpreter, ...]:
        """Return all interpreters of the machine. The first call searches for them, and runs each of them to
        read its properties. Blocks during the search."""
        with self._lock:
            if self._all is None:
                interpreters = {self._own.executable: self._own}
                for path in dict.fromkeys(self._places()):
                    if str(path) not in interpreters and (interpreter := _probe(path)):
                        interpreters.setdefault(interpreter.executable, interpreter)
                self._all = tuple(interpreters.values())
            return self._all

    def _places(self) -> Iterator[Path]:
        home = Path(self._environ.get("HOME") or "/nonexistent")
        pyenv = Path(self._environ.get("PYENV_ROOT") or home / ".pyenv")
        uv = Path(
            self._environ.get("UV_PYTHON_INSTALL_DIR")
            or Path(self._environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "uv" / "python"
        )
        yield from _executables(pyenv, "versions/3.*/bin/python3.*")
        yield from _executables(uv, "cpython-3.*/bin/python3.*")
        for entry in self._environ.get("PATH", "").split(os.pathsep):
            # Skip pyenv's shims: they may refer to a missing version, and pyenv's interpreters were listed
            # above.
            if entry and Path(entry).name != "shims":
                yield from _executables(Path(entry), "python3.*")


def _executables(directory: Path, pattern: str) -> Iterator[Path]:
    """Yield the interpreters that match the pattern, in sorted order. Yields none for directories without
    access, such as another user's home."""
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob(pattern)):
            if path.name.removeprefix("python3.").isdigit() and os.access(path, os.X_OK):
                yield path.resolve()


def _probe(path: Path) -> Interpreter | None:
    """Run an interpreter once and return its properties. Returns None if it is not a CPython, or hangs."""
    try:
        answer = subprocess.run(
            [str(path), "-I", "-S", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return msgspec.convert(ast.literal_eval(answer.stdout), Interpreter)
    except (OSError, subprocess.SubprocessError, SyntaxError, ValueError):
        return None
