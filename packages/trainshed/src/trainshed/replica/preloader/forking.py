"""Runs the preloader's main process: it imports modules, checks that forks of it work, and forks programs.

A fork keeps access to its interpreter's mount, because /proc/self/exe leads to that mount from any mount
namespace. If the mount is writable, a program that owns the file could change the interpreter of the service
and of other jobs. So the preloader restarts itself from a mount namespace in which everything is read-only.
Runs on Python 3.6.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from trainshed.replica.preloader import START, program_start
from trainshed.replica.sandbox import call_filter, users
from trainshed.replica.system import cache_leases, kernel, unix_sockets

_OPTIONAL_THREADS = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a fork may lose. jemalloc's threads (in PyArrow) free memory; in a fork, other
threads do this."""


def serve(text: str) -> None:
    """Run as a preloader with the configuration `text`. In each fork, run the requested program; return or
    raise as the program does."""
    configuration = json.loads(text)
    # From here on, search for modules in the runtime only.
    ours = sys.path.pop(0)
    for place in [place for place in sys.path_importer_cache if place.startswith(ours)]:
        del sys.path_importer_cache[place]
    sys.dont_write_bytecode, writes = True, sys.dont_write_bytecode
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, configuration["control"])
    try:
        _begin_read_only([sys.executable, "-c", START, text, ours])
    except OSError as error:
        _send(control, {"refused": "programs could change their interpreter: %s" % error})
        os._exit(0)
    kernel.name_process("ts-preloader")
    # Discard the output of imports, which belongs to no program.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    kernel.adopt_orphans()
    known = {handle for handle in kernel.open_handles() if _target(handle)}
    leases = cache_leases.hold_leases([configuration["root"]])
    known.update(leases)
    try:
        versions = _import(configuration["modules"])
        _flush()
        _require_forkable(known)
    except NotForkable as refusal:
        _send(control, {"refused": str(refusal)})
        os._exit(0)
    sys.dont_write_bytecode = writes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, configuration["listener"])
    call_filter.prepare()
    gc.collect()
    gc.freeze()
    _send(control, {"imported": versions})
    caller = _next_program(control, listener, configuration["idle"])
    argv, packed = program_start.become(caller, configuration["root"])
    program_start.run(argv, packed)


class NotForkable(Exception):
    """The imported modules do not support forks. The message contains the reason, as a clause."""


def _send(control: socket.socket, message: "dict[str, Any]") -> None:
    try:
        control.sendall(json.dumps(message).encode("utf-8") + b"\n")
    except OSError:
        os._exit(0)  # The parent process has exited, so this process exits as well.


def _import(modules: "list[str]") -> "dict[str, str]":
    """Import modules and return their versions. Raises NotForkable."""
    versions: "dict[str, str]" = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # An import may raise anything, including SystemExit.
            raise NotForkable("importing %s failed (%s: %s)" % (name, type(error).__name__, error)) from None
        versions[name] = str(getattr(module, "__version__", ""))
    return versions


def _flush() -> None:
    """Flush the output of the imports. Otherwise each fork would print it again when it exits."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def _require_forkable(known: "set[int]") -> None:
    """Check that a fork would neither lose threads nor share files. Raises NotForkable. `known`: file
    descriptors that were open before the imports."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise NotForkable("importing the frameworks initializes CUDA, which cannot be used after a fork")
    opened = [handle for handle in kernel.open_handles() if handle not in known]
    targets = [_target(handle) for handle in opened]
    kept = sorted(target for target in targets if target)
    if kept:
        raise NotForkable(
            "importing the frameworks opens files that programs would share (%s)" % ", ".join(kept[:5])
        )
    # Some threads do not survive a fork. Thread pools that support forks, such as OpenBLAS's, end their
    # threads before a fork and restart them when necessary. So after a trial fork, only threads remain that a
    # fork would lose.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    lost: "list[str]" = []
    for thread in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/comm" % thread, errors="replace") as file:
            name = file.read().strip()
        lost += [name] * (name not in _OPTIONAL_THREADS)
    if len(lost) > 1:
        raise NotForkable(
            "importing the frameworks starts %d threads that a fork would lose (%s)"
            % (len(lost) - 1, ", ".join(sorted(set(lost))))
        )


def _target(handle: int) -> str:
    try:
        return os.readlink("/proc/self/fd/%d" % handle)
    except OSError:
        # The file descriptor was that of the directory listing itself, which is closed by now. It is no file
        # of a framework.
        return ""


def _next_program(control: socket.socket, listener: socket.socket, idle: float) -> socket.socket:
    """Fork a process for each caller. Returns only in the forks, with the connection to the caller."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(listener, select.POLLIN)
    listener.setblocking(False)
    while True:
        ready = {handle for handle, _ in poll.poll(idle * 1000)}
        if not ready or control.fileno() in ready:
            os._exit(0)
        try:
            caller = listener.accept()[0]
        except OSError:
            continue  # The caller has disconnected: wait for the next one.
        try:
            if os.fork() == 0:
                return caller
        except OSError as error:
            program_start.send_line(caller, "cold the preloader cannot fork (%s)" % error.strerror)
        caller.close()


_EXE = "/proc/self/exe"


def _begin_read_only(argv: "list[str]") -> None:
    """Restart the interpreter as `argv` from a read-only mount. Return if the interpreter already is on a
    read-only mount. Raises OSError if the restart is impossible."""
    if _is_read_only(_EXE):
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            _send_interpreter(theirs)
        theirs.close()
        answer, handles = unix_sockets.receive(ours)
    os.waitpid(child, 0)
    if len(handles) < 2 or not _is_read_only(handles[0]):
        kernel.close_all(handles)
        raise OSError("the interpreter is not on a read-only mount (%s)" % answer.decode("utf-8", "replace"))
    # Keep the namespace's file descriptor open in the new interpreter, because the dynamic loader resolves
    # the interpreter's path in that namespace.
    os.set_inheritable(handles[1], True)
    os.execv("/proc/self/fd/%d" % handles[0], argv)


def _is_read_only(place: "str | int") -> bool:
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _send_interpreter(to: socket.socket) -> "NoReturn":
    """Run in a fork: create a read-only mount namespace and open the interpreter there. Send the file
    descriptors of the interpreter and of the namespace. Does not return."""
    try:
        path = os.readlink(_EXE)
        if os.geteuid():
            users.map_one(os.geteuid(), os.getegid())
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.make_read_only("/", below=True)
        handles = [os.open(name, os.O_RDONLY) for name in (path, "/proc/self/ns/mnt")]
        if not os.path.samestat(os.fstat(handles[0]), os.stat(_EXE)):
            raise OSError("the Python at %s was replaced during the start" % path)
        unix_sockets.send(to, b"opened", *handles)
    except OSError as error:
        unix_sockets.send(to, str(error).encode("utf-8", "replace"))
    finally:
        os._exit(0)
