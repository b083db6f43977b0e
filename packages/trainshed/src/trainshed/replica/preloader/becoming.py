"""Turns a fork of the preloader into a program: it enters the program's namespaces, limits and user, and then
repeats what an interpreter determines at its start.

Nothing here may raise after `started` was sent. Runs on Python 3.6.
"""

import json
import os
import resource
import signal
import site
import socket
import sys
import time
from importlib.machinery import PathFinder

from trainshed.replica import protocol
from trainshed.replica.preloader.running import Packed, script_directory
from trainshed.replica.sandbox import call_filter, users
from trainshed.replica.system import kernel, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    Command = tuple[list[str], Optional[Packed]]

_KINDS = {
    "user": kernel.CLONE_NEWUSER,
    "pid": kernel.CLONE_NEWPID,
    "mnt": kernel.CLONE_NEWNS,
    "uts": kernel.CLONE_NEWUTS,
    "ipc": kernel.CLONE_NEWIPC,
}
WAITING = "ts-waiting"
"""What `ps` shows of a fork until it is a program."""
_ADOPTION_SECONDS = 5.0
"""Until the shim is this process's parent; it takes microseconds."""


class Caller:
    """A main process that has connected to the preloader, in whose place the fork is to be the program."""

    def __init__(self, connection: socket.socket, line: bytes, namespaces: "list[int]") -> None:
        """`line`: its first line. `namespaces`: the handles that came with it, owned from here on."""
        self.connection = connection
        self.namespaces = namespaces
        try:
            self._names: "list[str]" = json.loads(line.decode("utf-8"))["namespaces"]
        except (ValueError, LookupError, TypeError):
            self._names = []

    @property
    def has_spoken(self) -> bool:
        """Whether it has named the namespaces of the fork before it was gone."""
        return 0 < len(self._names) == len(self.namespaces)

    def enter(self) -> None:
        """Have this process's children start in that namespace. Raises OSError."""
        _enter(self._names, self.namespaces)

    def close(self) -> None:
        kernel.close_all(self.namespaces)
        self.connection.close()


def become(caller: Caller, root: str) -> "Command":
    """Become the process that the caller describes; called in a fork of the preloader. `root`: the
    runtime's directory. Returns what it is to run (`running`)."""
    connection = caller.connection
    try:
        _be_adopted(caller)
        kernel.close_all(set(kernel.open_handles()) - {0, 1, 2, connection.fileno()})
        kernel.name_process(WAITING)
        connection.sendall(b"waiting %d\n" % os.getpid())
        _settle(*receive(connection), connection)
        last, groups = receive(connection)
        for handle in groups:
            os.write(handle, b"0")
            os.close(handle)
        for number, limits in last["limits"]:
            resource.setrlimit(number, tuple(limits))
        os.chdir(last["directory"])
        command = _begin_again(last, root)
        # As in a new interpreter, whatever the starter of the service ignores.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whatever fails, the program can start in its own interpreter.
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, Cold) else "%s: %s" % (type(error).__name__, error)
        say(connection, "cold " + why)
        os._exit(0)
    connection.sendall(b"started\n")
    connection.close()
    return command


class Cold(Exception):
    """This program has to start in its own interpreter. The message says why, as a clause."""


def say(connection: socket.socket, text: str) -> None:
    try:
        connection.sendall(text.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    except OSError:
        return  # The caller is gone, or no longer waits.


def receive(connection: socket.socket) -> "tuple[dict[str, Any], list[int]]":
    """Return the caller's next line, and the handles that came with it; end this process if there is
    none."""
    text = b""
    handles: "list[int]" = []
    while not text.endswith(b"\n"):
        connection.settimeout(_CALLER_SECONDS)
        more, beside = unix_sockets.receive_beside(connection)
        if not more:
            os._exit(0)
        text += more
        handles += beside
    return json.loads(text.decode("utf-8")), handles


_CALLER_SECONDS = 600.0
"""A caller that says nothing for so long has been stopped by somebody."""


def _enter(names: "list[str]", handles: "list[int]") -> "list[int]":
    """Enter the namespaces of these names; return the handles of other things."""
    for name, handle in zip(names, handles):  # noqa: B905 - `strict` is too young
        kernel.enter_namespace(handle, _KINDS[name])
        os.close(handle)
    return handles[len(names) :]


def _be_adopted(caller: Caller) -> None:
    """Become a child of the caller's shim in its process namespace. Only the process that is that child
    returns."""
    caller.enter()
    # The parent of this process ends right after the fork, so that the first process of its namespace adopts
    # it.
    if os.fork() or os.fork():
        os._exit(0)
    until = time.monotonic() + _ADOPTION_SECONDS
    while os.getppid() != 1:
        if time.monotonic() > until:
            raise Cold("the preloader's fork was not handed over in time")
        time.sleep(0.0001)


def _settle(second: "dict[str, Any]", places: "list[int]", connection: socket.socket) -> None:
    """Drop to the rights of a program that is executed; report `ready`."""
    if sorted(os.sched_getaffinity(0)) != second["processors"]:
        raise Cold("it may use other processors than its runtime was loaded on")
    handles = _enter(second["namespaces"], places)
    os.setsid()
    os.umask(0o022)
    kernel.leave_keyring()
    filtered = call_filter.install(connect=second["connect"]) if second["filter"] else -1
    if second["owners"]:
        users.enter(handles.pop(0))
    if second["level"] != protocol.LEVEL_ROOT:
        users.have_programs_capabilities()
        # The memory was another user's: from here on it is the program's own, as after an exec.
        kernel.allow_inspection()
    null = os.open(os.devnull, os.O_RDONLY)
    for handle, standard in ((null, 0), (handles[0], 1), (handles[1], 2)):
        os.dup2(handle, standard)
    kernel.close_all([null, *handles])
    if filtered >= 0:
        unix_sockets.send(connection, b"ready\n", filtered)
        os.close(filtered)
    else:
        connection.sendall(b"ready\n")


def _begin_again(last: "dict[str, Any]", root: str) -> "Command":
    """Set what an interpreter determines at its start. Returns what it is to run. Raises Cold."""
    argv, environ = last["argv"], last["environ"]
    python, template = last["python"], last["template"]
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    kernel.name_process(os.path.basename(argv[0]))
    home = os.path.dirname(template)
    _set_paths(python, template, root, home)
    packed = _packed(argv)
    looked_at = list(sys.path)
    if packed is not None:
        argv = [python, *(["-m", packed.module] if packed.module else [packed.file]), *argv[3:]]
        # Its files will be in the directory that is searched first.
        looked_at.append(os.path.join(packed.files, os.path.dirname(packed.file)))
    if argv[1] == "-c":
        sys.path[0] = ""
    elif argv[1] != "-m":
        if packed is None:
            _require_source(argv[1])
        sys.path[0] = script_directory(argv[1])
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


def _packed(argv: "list[str]") -> "Optional[Packed]":
    """Return the program that `trainshed run` has packed, if it is one; None = it is not. Raises Cold."""
    package = argv[2].partition(".")[0] if argv[1] == "-m" else ""
    if package != protocol.PACKED_PROGRAM:
        return None
    spec = PathFinder.find_spec(package, sys.path)
    if spec is None or not spec.origin:
        return None  # `-m` will report that.
    directory = os.path.dirname(spec.origin)
    with open(os.path.join(directory, "begin.json"), encoding="utf-8") as file:
        begin = json.load(file)
    packed = Packed(directory, begin["file"], begin["module"])
    if packed.file.endswith(".sh"):
        raise Cold("it is a shell script")
    return packed


def _require_source(path: str) -> None:
    """Check that it is a file with Python source: an interpreter runs archives, directories and bytecode in
    other ways, and a pipe can only be read once. Raises Cold."""
    if not (path.endswith(".py") and os.path.isfile(path)):
        raise Cold("%s is no .py file" % path)


def _set_paths(python: str, template: str, root: str, home: str) -> None:
    """Set `sys`'s paths as the interpreter `python` of an environment has them. `home`: directory of its
    prefix. `root`: the runtime's own, from which modules were loaded."""
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
    # Done here: importlib.invalidate_caches() would import a library of 30 modules (Python 3.12).
    for finder in sys.path_importer_cache.values():
        getattr(finder, "invalidate_caches", int)()
    site.main()
    # `site` does not search there in a new interpreter either.
    sys.path.insert(0, os.getcwd())


def _require_same(paths: "list[str]", home: str, root: str) -> None:
    """Check that this program would find no loaded module elsewhere. Raises Cold."""
    library = os.path.join(root, "lib")
    loaded = {name for name in sys.modules if "." not in name}
    for path in paths:
        # Modules were loaded from the standard library and the runtime's own packages.
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
            raise Cold(
                "%s would be imported from %s, not from the runtime" % (", ".join(again[:5]), path)
            )


def _forget() -> None:
    """Reset what modules have kept of the process that loaded them."""
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
    """Seed the random generators anew, as in an interpreter of its own."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(None)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Only the generator of the CPU: torch.seed() would queue a call for GPUs as well.
        torch.default_generator.seed()
