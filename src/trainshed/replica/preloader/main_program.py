"""Makes a preloader's interpreter run a program: a module, as by `-m`, a text, as by `-c`, or a file.

The preloader was started by `-m`, so that the interpreter's main function, which is written in C, imports
`runpy` and calls its `_run_module_as_main`. In a fork that name is bound to another callable that is written
in C. So no Python frame of ours lies beneath the program, and its end, its exit status and its tracebacks are
those of an interpreter of its own. Runs on Python 3.6.
"""

import ctypes
import functools
import importlib
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_FILE_INPUT = 257
"""Tells the parser to take a whole file, not one statement or an expression (Py_file_input)."""

_IGNORE_COOKIE = 0x0800
"""Tells the parser to ignore a line that names an encoding (PyCF_IGNORE_COOKIE), as it does in the text of
`-c` since Python 3.10."""


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


class Before:
    """The effects of the preloader's imports that a program has to find."""

    def __init__(
        self,
        custom: "Optional[types.ModuleType]",
        printed: "tuple[bytes, bytes]",
    ) -> None:
        """`custom`: the interpreter's own `sitecustomize`. `printed`: output of the imports on standard
        output and standard error."""
        self.custom = custom
        self._printed = printed

    def print_again(self) -> None:
        """Print what the imports printed, as if they were the program's."""
        for handle, text in zip((1, 2), self._printed):  # noqa: B905 - `strict` is too young
            left = text
            while left:
                try:
                    left = left[os.write(handle, left) :]
                except OSError:
                    break  # Nothing reads the output.


def go_on_with(argv: "list[str]", packed: "Optional[Packed]", before: Before) -> None:
    """Have the interpreter run `argv` when its start is finished: `[PYTHON, "-m", MODULE, ...]`, `[PYTHON,
    "-c", TEXT, ...]` or `[PYTHON, FILE, ...]`. `packed`: files that have to be put into the working directory
    first."""
    # A new namespace: the garbage collector ignores the existing one, which was frozen, so that objects a
    # program leaves in it would not be finalized.
    main = types.ModuleType("__main__")
    main.__dict__.update(sys.modules["__main__"].__dict__)
    if "__annotations__" in main.__dict__:
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    start = _Start(argv, packed, before, list(sys.path))
    # `site` still has to look for `usercustomize`, but not beside the program.
    del sys.path[0]
    # `print` is a C function that accepts any arguments, and at its end calls `file.flush`.
    runpy._run_module_as_main = functools.partial(print, file=start, flush=True)  # type: ignore[attr-defined]


class _Start:
    """The file that `print` is given. Looking up `flush` completes the program's surroundings, and the result
    that `print` then calls is the program."""

    def __init__(
        self,
        argv: "list[str]",
        packed: "Optional[Packed]",
        before: Before,
        paths: "list[str]",
    ) -> None:
        self._argv = argv
        self._packed = packed
        self._before = before
        self._paths = paths
        self._run_module: "Any" = runpy._run_module_as_main  # type: ignore[attr-defined]

    def write(self, text: str) -> None:
        """Do nothing: `print` writes its arguments."""

    @property
    def flush(self) -> "Callable[[], Any]":
        """The program as a C function without arguments."""
        runpy._run_module_as_main = self._run_module  # type: ignore[attr-defined]
        # The interpreter has inserted an entry for the module it was started with.
        sys.path[:] = self._paths
        _forget_us(self._before)
        if self._packed is not None:
            self._packed.place()
        self._before.print_again()
        if self._argv[1] == "-m":
            sys.argv[:] = ["-m", *self._argv[3:]]
            _count_fewer_calls(_BENEATH_MODULES)
            return functools.partial(self._run_module, self._argv[2])
        _count_fewer_calls(_BENEATH_TEXTS)
        if self._argv[1] == "-c":
            sys.argv[:] = ["-c", *self._argv[3:]]
            return _text(self._argv[2])
        sys.argv[:] = self._argv[1:]
        return _file(self._argv[1])


_BENEATH_MODULES, _BENEATH_TEXTS = 2, 4
"""How many calls of C functions lie beneath a module, and beneath a text or file, that would not in an
interpreter of its own, and that count against the recursion limit."""


def _count_fewer_calls(number: int) -> None:
    """Reduce the count of nested calls by `number`, so that a program that recurses without end gets as deep
    as in an interpreter of its own."""
    # Older interpreters export no such function; in newer ones C functions have a limit of their own.
    if (3, 9) <= sys.version_info[:2] <= (3, 11):
        for _ in range(number):
            ctypes.pythonapi.Py_LeaveRecursiveCall()


def script_directory(file: str) -> str:
    """Return the directory that the interpreter searches first if it runs this file."""
    return os.path.dirname(os.path.realpath(file))


def _runner(name: str, before: "list[Any]", after: "list[Any]") -> "Any":
    """Return a function of the interpreter's C API that runs code. `before`, `after`: the types of its
    parameters before and after the global and local variables."""
    run = getattr(ctypes.pythonapi, name)
    run.restype = ctypes.py_object
    run.argtypes = [*before, ctypes.py_object, ctypes.py_object, *after]
    return run


def _text(text: str) -> "Callable[[], Any]":
    """Return what runs a text as interpreters before 3.13 run that of `-c`. Newer ones also show its lines in
    tracebacks, which cannot be imitated."""
    variables = sys.modules["__main__"].__dict__
    run = _runner("PyRun_StringFlags", [ctypes.c_char_p, ctypes.c_int], [ctypes.c_void_p])
    cookies = _IGNORE_COOKIE if sys.version_info >= (3, 10) else 0
    flags = (ctypes.c_int * 2)(cookies, sys.version_info[1])
    source = text.encode("utf-8") + b"\n"
    return functools.partial(run, source, _FILE_INPUT, variables, variables, flags)


def _file(name: str) -> "Callable[[], Any]":
    """Return what runs a file as an interpreter that is started with it."""
    path = name
    if sys.version_info >= (3, 9) and not os.path.isabs(name):
        path = os.path.join(os.getcwd(), name[2:] if name.startswith("./") else name)
    variables = sys.modules["__main__"].__dict__
    loader = SourceFileLoader("__main__", path)
    variables.update(__file__=path, __cached__=None, __loader__=loader)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    opened = libc.fopen(os.fsencode(path), b"rbe")
    if not opened:
        failure = ctypes.get_errno()
        told = "%s: can't open file %r: [Errno %d] %s\n"
        sys.stderr.write(told % (sys.executable, path, failure, os.strerror(failure)))
        os._exit(2)
    run = _runner(
        "PyRun_FileExFlags",
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int],
        [ctypes.c_int, ctypes.c_void_p],
    )
    run.errcheck = _flush
    return functools.partial(
        run, opened, os.fsencode(path), _FILE_INPUT, variables, variables, 1, None
    )


def _flush(nothing: "Any", *_: "Any") -> "Any":
    """Flush the streams, as the interpreter does at the end of a file, before it waits for threads."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BaseException:  # Errors are ignored, as there; a stream may be None.
            continue
    return nothing


def _forget_us(before: Before) -> None:
    """Remove our own modules from those that count as imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainshed"]:
        module = sys.modules.pop(name)
        # Kept alive: freeing it would make the fork copy all the memory that it lies in.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    sys.modules.pop("sitecustomize", None)
    if before.custom is not None:
        sys.modules["sitecustomize"] = before.custom
