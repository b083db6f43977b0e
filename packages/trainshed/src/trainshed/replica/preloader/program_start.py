"""Turns a fork of the preloader into a program. The fork enters the program's namespaces, limits and user,
repeats the startup of an interpreter, and runs the program: a module (like `-m`), a text (like `-c`), or a
file.

The program's stack starts with the frames of the preloader. If an exception ends the program, these frames
are removed from its traceback. Runs on Python 3.6.
"""

import importlib
import json
import os
import resource
import runpy
import signal
import site
import socket
import sys
import time
import types
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any, List, Optional, Tuple

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, users
from trainshed.replica.system import kernel, unix_sockets

Command = Tuple[List[str], Optional["Packed"]]

_ADOPTION_TIMEOUT = 5.0
"""Maximum number of seconds until the shim has adopted the process, which usually takes microseconds."""
_CALLER_TIMEOUT = 600.0
"""Timeout in seconds for the caller's messages. A caller that takes longer was stopped (SIGSTOP)."""


def become(caller: socket.socket, root: str) -> "Command":
    """Turn this fork of the preloader into the process that the caller requests. `root`: the runtime's
    directory. Returns the arguments for `run`."""
    try:
        kernel.close_all(set(kernel.open_handles()) - {0, 1, 2, caller.fileno()})
        kernel.name_process("ts-waiting")
        caller.settimeout(_CALLER_TIMEOUT)
        line, handles = unix_sockets.receive_line(caller)
        if not line:
            os._exit(0)
        message = json.loads(line.decode("utf-8"))
        filtered = _enter(message, handles)
        for number, limits in message["limits"]:
            resource.setrlimit(number, tuple(limits))
        os.chdir(message["directory"])
        command = _start_interpreter(message, root)
        # Reset these signals as in a new interpreter, even if the service's parent process ignored them.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        unix_sockets.send(caller, b"ready %d\n" % os.getpid(), *filtered)
        kernel.close_all(filtered)
        if not caller.recv(16):
            os._exit(0)
    # After any failure above, report `cold` and exit: the program can still start in its own interpreter.
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, Cold) else "%s: %s" % (type(error).__name__, error)
        send_line(caller, "cold " + why)
        os._exit(0)
    caller.close()
    return command


class Cold(Exception):
    """Raised if the program must start in its own interpreter (a cold start). The message contains the
    reason, as a clause."""


def send_line(connection: socket.socket, text: str) -> None:
    try:
        connection.sendall(text.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    except OSError:
        return  # The caller has exited, or no longer waits for this process.


def _enter(message: "dict[str, Any]", handles: "list[int]") -> "list[int]":
    """Enter the program's namespaces in a child of the shim, and drop all rights that a newly executed
    program would not have. Returns only in this child: a list with the file descriptor for its socket calls,
    empty if the shim does not handle them. Raises Cold."""
    if sorted(os.sched_getaffinity(0)) != message["processors"]:
        raise Cold("the program may use other CPUs than the preloader")
    for handle in handles[: message["namespaces"]]:
        kernel.enter_namespace(handle, 0)
        os.close(handle)
    output, errors, *others = handles[message["namespaces"] :]
    # The parent exits right after the fork, so that the shim, process 1 of the namespace, adopts the child.
    if os.fork() or os.fork():
        os._exit(0)
    until = time.monotonic() + _ADOPTION_TIMEOUT
    while os.getppid() != 1:
        if time.monotonic() > until:
            raise Cold("the shim did not adopt the forked process in time")
        time.sleep(0.0001)
    os.setsid()
    os.umask(0o022)
    kernel.join_new_keyring()
    is_asked = message["connects"] is not None
    filtered = [call_filter.install(connect=message["connects"])] if is_asked else []
    if message["owner"]:
        users.enter(others.pop(0))
    if message["level"] != protocol.LEVEL_ROOT:
        users.set_program_capabilities()
        # The change of users forbids inspection. Allow it again, as the execution of a program would.
        kernel.allow_inspection()
    null = os.open(os.devnull, os.O_RDONLY)
    for handle, standard in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(handle, standard)
    for handle in others:
        os.write(handle, b"0")
    kernel.close_all([null, output, errors, *others])
    return [handle for handle in filtered if handle >= 0]


def _start_interpreter(message: "dict[str, Any]", root: str) -> "Command":
    """Repeat the startup of an interpreter. Returns the arguments for `run`. Raises Cold."""
    argv, environ = message["argv"], message["environ"]
    python, template = message["python"], message["template"]
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    kernel.name_process(os.path.basename(argv[0]))
    home = os.path.dirname(template)
    _set_paths(python, template, root, home)
    packed = _find_packed_program(argv)
    looked_at = list(sys.path)
    if packed is not None:
        argv = [python, *(["-m", packed.module] if packed.module else [packed.file]), *argv[3:]]
        # The program's files will be copied to the working directory, which Python searches first. So check
        # now that their directory does not replace a loaded module.
        looked_at.append(os.path.join(packed.files, os.path.dirname(packed.file)))
    if argv[1] == "-c":
        sys.path[0] = ""
    elif argv[1] != "-m":
        # Python runs archives, directories and bytecode in a different way, and a pipe can be read only once.
        # So only a .py file can start here.
        if packed is None and not (argv[1].endswith(".py") and os.path.isfile(argv[1])):
            raise Cold("%s is not a .py file" % argv[1])
        sys.path[0] = os.path.dirname(os.path.realpath(argv[1]))
        looked_at.append(sys.path[0])
    _forget()
    _require_same(looked_at, home, root)
    _reseed()
    if environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    return argv, packed


class Packed:
    """A program of `trainshed run`. Its package copies its files to the working directory."""

    def __init__(self, directory: str, file: str, module: str) -> None:
        """`directory`: directory of the package. `file`: the file to run; if it is "", `module` is run."""
        self._package = os.path.basename(directory)
        self.files = os.path.join(directory, "files")
        self.file = file
        self.module = module

    def place(self) -> None:
        """Copy the program's files to the working directory. This runs code of the job."""
        importlib.import_module(self._package + "._starter").place_files()
        for name in [name for name in sys.modules if name.partition(".")[0] == self._package]:
            del sys.modules[name]


def _find_packed_program(argv: "list[str]") -> "Optional[Packed]":
    """Return the program that `trainshed run` has packed, or None for other programs. Raises Cold."""
    package = argv[2].partition(".")[0] if argv[1] == "-m" else ""
    if package != protocol.PACKED_PROGRAM:
        return None
    spec = PathFinder.find_spec(package, sys.path)
    if spec is None or not spec.origin:
        return None  # The package does not exist: `-m` will report this error.
    directory = os.path.dirname(spec.origin)
    with open(os.path.join(directory, "begin.json"), encoding="utf-8") as file:
        begin = json.load(file)
    packed = Packed(directory, begin["file"], begin["module"])
    if packed.file.endswith(".sh"):
        raise Cold("the program is a shell script")
    return packed


def _set_paths(python: str, template: str, root: str, home: str) -> None:
    """Set the paths in `sys` like those of an environment's interpreter `python`. `home`: directory of the
    interpreter's prefix. `root`: the runtime's own directory, from which modules were loaded."""
    library = [home + path[len(root) :] for path in sys.path[:3]]
    sys.path[:] = library
    sys.executable = python
    before = template if sys.version_info >= (3, 14) else home
    sys.base_prefix = sys.base_exec_prefix = home
    sys.prefix = sys.exec_prefix = before
    for name in ("_base_executable", "_stdlib_dir"):
        place = getattr(sys, name, None)
        if place:
            setattr(sys, name, home + place[len(root) :])
    site.PREFIXES[:] = [before, before]
    site.ENABLE_USER_SITE = site.USER_SITE = site.USER_BASE = None
    # Clear these caches one by one: importlib.invalidate_caches() would import a library of 30 modules
    # (Python 3.12).
    for finder in sys.path_importer_cache.values():
        getattr(finder, "invalidate_caches", int)()
    site.main()
    # Insert the working directory only now: in a new interpreter, `site` does not search it either.
    sys.path.insert(0, os.getcwd())


def _require_same(paths: "list[str]", home: str, root: str) -> None:
    """Check that this program would find each loaded module at the same path. Raises Cold."""
    library = os.path.join(root, "lib")
    loaded = {name for name in sys.modules if "." not in name}
    for path in paths:
        # Skip the directories from which the modules were loaded: the standard library and the runtime's own
        # packages.
        if path.startswith(library + os.sep) or path.endswith(".zip"):
            continue
        if path.startswith(os.path.join(home, "lib") + os.sep) and "site-packages" not in path:
            continue
        try:
            names = {name.partition(".")[0] for name in os.listdir(path or ".")}
        except OSError:
            continue
        again = sorted(name for name in names & loaded if hasattr(sys.modules[name], "__file__"))
        again = [name for name in again if sys.modules[name].__file__]
        if again:
            raise Cold("%s would be imported from %s, not from the runtime" % (", ".join(again[:5]), path))


def _forget() -> None:
    """Reset the state of loaded modules that depends on the program, such as the directory for temporary
    files and the interpreter's paths."""
    _set("tempfile", tempdir=None)
    _set("platform", _uname_cache=None)
    for name in ("_platform_cache", "_sys_version_cache"):
        cache = getattr(sys.modules.get("platform"), name, None)
        if isinstance(cache, dict):
            cache.clear()
    _set(
        "sysconfig",
        _PREFIX=os.path.normpath(sys.prefix),
        _EXEC_PREFIX=os.path.normpath(sys.exec_prefix),
        _BASE_PREFIX=os.path.normpath(sys.base_prefix),
        _BASE_EXEC_PREFIX=os.path.normpath(sys.base_exec_prefix),
        _CONFIG_VARS=None,
        _CONFIG_VARS_INITIALIZED=False,
        _USER_BASE=None,
    )


def _set(name: str, **values: "Any") -> None:
    module = sys.modules.get(name)
    for attribute, value in values.items():
        if hasattr(module, attribute):
            setattr(module, attribute, value)


def _reseed() -> None:
    """Seed the random generators again, as in a new interpreter."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(None)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Seeds only the CPU's generator: torch.seed() would queue a call for GPUs as well.
        torch.default_generator.seed()


def run(argv: "list[str]", packed: "Optional[Packed]") -> None:
    """Run `[PYTHON, "-m", MODULE, ...]`, `[PYTHON, "-c", TEXT, ...]` or `[PYTHON, FILE, ...]` until it ends.
    If the program raises an exception, print it and then raise it. `packed`: files to copy into the working
    directory first."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainshed"]:
        # Keep the module alive: freeing it would make the fork copy all the memory pages that contain it.
        _kept.append(sys.modules.pop(name))
    # Use a new namespace. The existing one is frozen, and the garbage collector ignores it, so that objects
    # of the program in it would not be finalized.
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
        sys.excepthook = _ignore_exception
        # The interpreter exits as after any exception, and does not print the exception again.
        raise


def _ignore_exception(*_: "Any") -> None:
    """Replaces `sys.excepthook` after the program's exception was printed, to print it only once."""


def _run_file(name: str, variables: "dict[str, Any]") -> None:
    path = name
    if sys.version_info >= (3, 9) and not os.path.isabs(name):
        path = os.path.join(os.getcwd(), name[2:] if name.startswith("./") else name)
    variables.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", 0, True), variables)


_kept: "list[types.ModuleType]" = []
