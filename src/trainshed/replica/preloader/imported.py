"""Which modules a program finds imported that begins in a fork of an interpreter that is up: those that are
in each interpreter when its program begins, and none that a preloader has imported for itself.

So a program's own `socket.py` is the one that it imports, and `urllib` has no `parse` before somebody imports
that. What a program imports is imported anew, as in an interpreter of its own. Runs on Python 3.6.
"""

import ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

_RUNNER = "runpy"


class Imported:
    """By name, and what comes of it in one program."""

    def __init__(self, first: "set[str]", places: "set[str]", with_runner: "set[str]") -> None:
        """`first`: the modules of an interpreter that has just come up; `places`: the directories that it has
        looked into; `with_runner`: its modules when it has imported `runpy` as well, as for `-m`."""
        self._first = first
        self._places = places
        self._with_runner = with_runner
        self._found = first

    def begin_again(self, root: str, home: str, *, runs_module: bool) -> None:
        """Have imported what an interpreter has before `site` runs, and what runs the program: `-m` if
        `runs_module`. `root`, `home`: the prefix that it was imported from, and that of the program, which
        has links to the same files."""
        kept = self._with_runner if runs_module else {*self._first, _RUNNER}
        forget([name for name in sys.modules if name not in kept])
        for place in set(sys.path_importer_cache) - self._places:
            del sys.path_importer_cache[place]
        if root != home:
            for module in list(sys.modules.values()):
                _name_files(module, root, home)

    def note_found(self, *, runs_module: bool) -> None:
        """`site` has run: from here on nothing is imported for the program."""
        self._found = set(sys.modules)
        if not runs_module:
            self._found.discard(_RUNNER)

    def forget_others(self) -> None:
        """The program begins."""
        forget([name for name in sys.modules if name not in self._found])


def _name_files(module: "Any", root: str, home: str) -> None:
    """Have this module of the standard library tell that it was imported from `home`."""
    spec = getattr(module, "__spec__", None)
    for holder, name in ((module, "__path__"), (spec, "submodule_search_locations")):
        path: "list[str] | None" = getattr(holder, name, None)
        if type(path) is list:  # Not of a package without files of its own.
            path[:] = [_moved(each, root, home) for each in path]
    loader = getattr(module, "__loader__", None)
    for holder, name in (
        (module, "__file__"),
        (module, "__cached__"),
        (spec, "origin"),
        (spec, "cached"),
        (loader, "path"),
    ):
        value = getattr(holder, name, None)
        if isinstance(value, str) and _moved(value, root, home) != value:
            setattr(holder, name, _moved(value, root, home))


def _moved(path: str, root: str, home: str) -> str:
    is_library = path.startswith(root + "/lib/") and "/site-packages/" not in path
    return home + path[len(root) :] if is_library else path


def forget(names: "Iterable[str]") -> None:
    """Have these modules not be imported."""
    for name in names:
        module = sys.modules.pop(name)
        # Not taken apart, which would have the fork copy all the memory that it lies in.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        package, _, attribute = name.rpartition(".")
        if getattr(sys.modules.get(package), attribute, None) is module:
            delattr(sys.modules[package], attribute)
