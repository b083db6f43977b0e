"""Which modules a program finds imported that begins in a fork of an interpreter that is up: those that are
in each interpreter when its program begins, and none that a preloader has imported for itself.

So a program's own `socket.py` is the one that it imports, and `urllib` has no `parse` before somebody imports
that. What a program imports is imported anew, as in an interpreter of its own. Runs on Python 3.6.
"""

import ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

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

    def begin_again(self, *, runs_module: bool) -> None:
        """Have imported what an interpreter has before `site` runs, and what runs the program: `-m` if
        `runs_module`."""
        kept = self._with_runner if runs_module else {*self._first, _RUNNER}
        forget([name for name in sys.modules if name not in kept])
        for place in set(sys.path_importer_cache) - self._places:
            del sys.path_importer_cache[place]

    def note_found(self, *, runs_module: bool) -> None:
        """`site` has run: from here on nothing is imported for the program."""
        self._found = set(sys.modules)
        if not runs_module:
            self._found.discard(_RUNNER)

    def forget_others(self) -> None:
        """The program begins."""
        forget([name for name in sys.modules if name not in self._found])


def forget(names: "Iterable[str]") -> None:
    """Have these modules not be imported."""
    for name in names:
        module = sys.modules.pop(name)
        # Not taken apart, which would have the fork copy all the memory that it lies in.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        package, _, attribute = name.rpartition(".")
        if getattr(sys.modules.get(package), attribute, None) is module:
            delattr(sys.modules[package], attribute)
