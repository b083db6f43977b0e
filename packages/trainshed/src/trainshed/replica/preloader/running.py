"""Runs a program in a fork of a preloader: a module, as by `-m`, a text, as by `-c`, or a file.

The frames of the preloader lie beneath the program. They are left out of the traceback of an exception that
ends it. Runs on Python 3.6.
"""

import importlib
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


class Packed:
    """A program of `trainshed run`, whose package knows how its files get into the working directory."""

    def __init__(self, directory: str, file: str, module: str) -> None:
        """`directory`: of the package. `file`: the file that is run; "" = `module` is run."""
        self._package = os.path.basename(directory)
        self.files = os.path.join(directory, "files")
        self.file = file
        self.module = module

    def place(self) -> None:
        """Put its files into the working directory. Runs code of the job."""
        importlib.import_module(self._package + "._starter").place_files()
        for name in [name for name in sys.modules if name.partition(".")[0] == self._package]:
            del sys.modules[name]


def run(argv: "list[str]", packed: "Optional[Packed]") -> None:
    """Run `[PYTHON, "-m", MODULE, ...]`, `[PYTHON, "-c", TEXT, ...]` or `[PYTHON, FILE, ...]` to its end.
    `packed`: files that have to be put into the working directory first. Raises what
    the program raises, after having printed it."""
    _forget_us()
    # A new namespace: the garbage collector ignores the existing one, which was frozen, so that objects a
    # program leaves in it would not be finalized.
    main = types.ModuleType("__main__")
    own = sys.modules["__main__"].__dict__
    main.__dict__.update({name: own[name] for name in own if name.startswith("__")})
    if "__annotations__" in own:
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        if packed is not None:
            packed.place()
        if argv[1] == "-m":
            sys.argv[:] = ["-m", *argv[3:]]
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
        elif argv[1] == "-c":
            sys.argv[:] = ["-c", *argv[3:]]
            exec(compile(argv[2], "<string>", "exec", 0, True), main.__dict__)
        else:
            sys.argv[:] = argv[1:]
            _run_file(argv[1], main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = _say_nothing
        raise  # The interpreter ends as by any exception, and does not print it again.


def _say_nothing(*_: "Any") -> None:
    """Take the place of `sys.excepthook`."""


def _run_file(name: str, variables: "dict[str, Any]") -> None:
    path = name
    if sys.version_info >= (3, 9) and not os.path.isabs(name):
        path = os.path.join(os.getcwd(), name[2:] if name.startswith("./") else name)
    variables.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", 0, True), variables)


def script_directory(file: str) -> str:
    """Return the directory that the interpreter searches first if it runs this file."""
    return os.path.dirname(os.path.realpath(file))


def _forget_us() -> None:
    """Remove our own modules from those that count as imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainshed"]:
        # Kept alive: freeing it would make the fork copy all the memory that it lies in.
        _kept.append(sys.modules.pop(name))


_kept: "list[types.ModuleType]" = []
