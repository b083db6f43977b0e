"""Restores in a fork the modules that a program finds imported: those that every interpreter has when its
program begins, and none that a preloader has imported for itself.

So a program that has a `socket.py` imports that one, and `urllib` has no `parse` before it is imported. Other
modules are imported anew, as in an interpreter of its own. Runs on Python 3.6.
"""

import ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

_RUNNER = "runpy"


class Imported:
    """The modules that were imported before, by name."""

    def __init__(self, first: "set[str]", places: "set[str]", with_runner: "set[str]") -> None:
        """`first`: the modules of a newly started interpreter. `places`: the directories that it has
        searched. `with_runner`: its modules after it has imported `runpy` as well, as for `-m`."""
        self._first = first
        self._places = places
        self._with_runner = with_runner
        self._found = first

    def begin_again(self, root: str, home: str, *, runs_module: bool) -> None:
        """Reduce the modules to those that an interpreter has before `site` runs, and to those that run the
        program: by `-m` if `runs_module`. `root`: the prefix that they were imported from. `home`: the
        program's prefix, which has links to the same files."""
        kept = self._with_runner if runs_module else {*self._first, _RUNNER}
        forget([name for name in sys.modules if name not in kept])
        for place in set(sys.path_importer_cache) - self._places:
            del sys.path_importer_cache[place]
        if root != home:
            for module in list(sys.modules.values()):
                _name_files(module, root, home)

    def note_found(self, *, runs_module: bool) -> None:
        """Note the modules after `site` has run; later imports are not the program's."""
        self._found = set(sys.modules)
        if not runs_module:
            self._found.discard(_RUNNER)

    def forget_others(self) -> None:
        """Remove all other modules, because the program begins."""
        forget([name for name in sys.modules if name not in self._found])


def _name_files(module: "Any", root: str, home: str) -> None:
    """Change the paths of a standard library module as if it was imported from `home`."""
    spec = getattr(module, "__spec__", None)
    for holder, name in ((module, "__path__"), (spec, "submodule_search_locations")):
        path: "list[str] | None" = getattr(holder, name, None)
        if type(path) is list:  # Namespace packages have another type.
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
    """Remove modules from those that count as imported."""
    for name in names:
        module = sys.modules.pop(name)
        # Kept alive: freeing it would make the fork copy all the memory that it lies in.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        package, _, attribute = name.rpartition(".")
        if getattr(sys.modules.get(package), attribute, None) is module:
            delattr(sys.modules[package], attribute)
