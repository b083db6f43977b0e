"""The preloader's main process: it imports modules, checks whether it can be forked after that, and forks
programs.

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
import time

from trainshed.replica.preloader import becoming, interpreter, main_program, shown_arguments
from trainshed.replica.sandbox import call_filter
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_LOOK_SECONDS = 10.0
"""Seconds between two looks at how much memory the machine has left."""
_SHORT_PART = 20
"""It ends when less than this part of the machine's memory is left."""
_MOST_PRINTED = 1 << 16
"""Bytes that an import may print on either stream."""
_KNOWING = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a fork does without, by what their library does in each fork. jemalloc's (PyArrow
brings one) gives free memory back; in a fork those threads do that which free it."""


def serve(text: str, custom: "ModuleType | None") -> None:
    """Run as a preloader; only forked programs return. `custom`: the interpreter's own `sitecustomize`."""
    configuration = json.loads(text)
    # From here on modules are imported from the runtime alone.
    ours = sys.path.pop(0)
    sys.path_importer_cache.pop(ours, None)
    sys.dont_write_bytecode, writes = True, sys.dont_write_bytecode
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, configuration["control"])
    try:
        interpreter.begin_read_only()
    except OSError as error:
        _tell(control, {"refused": "programs could change their interpreter: %s" % error})
        os._exit(0)
    kernel.name_process("ts-preloader")
    for handle, standard in zip(configuration["printed"], (1, 2)):  # noqa: B905 - `strict` is too young
        os.dup2(handle, standard)
        os.close(handle)
    kernel.adopt_orphans()
    known = {handle for handle in kernel.open_handles() if _target(handle)}
    leases = program.hold_leases([configuration["root"]])
    known.update(leases)
    try:
        versions = _import(configuration["modules"])
        printed = _printed()
        _require_forkable(known)
    except Refused as refusal:
        _tell(control, {"refused": str(refusal)})
        os._exit(0)
    sys.dont_write_bytecode = writes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, configuration["listener"])
    call_filter.prepare()
    shown_arguments.find()
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    _tell(control, {"imported": versions, "python": sys.version_info[:2]})
    guardian = _next_program(control, listener, configuration["idle"])
    becoming.become(guardian, configuration["root"], main_program.Before(custom, printed))


class Refused(Exception):
    """A process with these modules cannot be forked. The message says why, as a clause."""


def _tell(control: socket.socket, message: "dict[str, Any]") -> None:
    try:
        control.sendall(json.dumps(message).encode("utf-8") + b"\n")
    except OSError:
        os._exit(0)  # The process that started this one is gone.


def _import(modules: "list[str]") -> "dict[str, str]":
    """Import modules; return their versions. Raises Refused."""
    versions: "dict[str, str]" = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except (
            BaseException
        ) as error:  # An import may raise whatever it likes, SystemExit included.
            raise Refused(
                "importing %s failed (%s: %s)" % (name, type(error).__name__, error)
            ) from None
        versions[name] = str(getattr(module, "__version__", ""))
    return versions


def _printed() -> "tuple[bytes, bytes]":
    """Return what the imports have printed on standard output and standard error, which are files now;
    programs print it again. Raises Refused."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Output in C buffers: each fork would print it at its end.
    ctypes.CDLL(None).fflush(None)
    output, errors = (os.pread(handle, _MOST_PRINTED + 1, 0) for handle in (1, 2))
    if max(len(output), len(errors)) > _MOST_PRINTED:
        raise Refused("their import prints more than %d KiB" % (_MOST_PRINTED >> 10))
    return output, errors


def _require_forkable(known: "set[int]") -> None:
    """Check that a fork neither loses nor shares anything. `known`: handles that were open before. Raises
    Refused."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise Refused("their import has initialized CUDA, which cannot be used after a fork")
    opened = [handle for handle in kernel.open_handles() if handle not in known]
    targets = [_target(handle) for handle in opened]
    kept = sorted(target for target in targets if target)
    if kept:
        raise Refused(
            "their import keeps files open that programs would share (%s)" % ", ".join(kept[:5])
        )
    # Thread pools that handle forks, such as OpenBLAS's, end their threads before one, in the parent as well,
    # and restart them when needed. Remaining threads would be lost.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if kernel.LINUX:
        names = [_thread_name(each) for each in os.listdir("/proc/self/task")]
        lost = [name for name in names if name not in _KNOWING]
        if len(lost) > 1:
            raise Refused(
                "their import starts %d threads that a fork would lose (%s)"
                % (len(lost) - 1, ", ".join(sorted(set(lost))))
            )


def _target(handle: int) -> str:
    try:
        return os.readlink("/proc/self/fd/%d" % handle)
    except OSError:
        return ""  # It is the handle of the listing itself.


def _thread_name(thread: str) -> str:
    with open("/proc/self/task/%s/comm" % thread, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _next_program(
    control: socket.socket, listener: socket.socket, idle: float
) -> becoming.Guardian:
    """Fork a process for each guardian, and return the guardian in that process."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(listener, select.POLLIN)
    listener.setblocking(False)
    #: Connections, by handle, that have not named the namespaces of their fork yet.
    silent: "dict[int, socket.socket]" = {}
    until = time.monotonic() + idle
    while True:
        left = until - time.monotonic()
        if left <= 0 or _is_memory_short():
            os._exit(0)
        ready = {handle for handle, _ in poll.poll(min(left, _LOOK_SECONDS) * 1000 + 1)}
        if control.fileno() in ready and not _answer(control):
            os._exit(0)
        if listener.fileno() in ready:
            connection = _accept(listener)
            if connection is not None:
                silent[connection.fileno()] = connection
                poll.register(connection, select.POLLIN)
                ready.add(connection.fileno())  # Its first line has mostly come by now.
                until = time.monotonic() + idle
        for handle in ready & set(silent):
            connection = silent[handle]
            try:
                line, handles = unix_sockets.receive_some(connection)
            except BlockingIOError:
                continue
            except OSError:
                line, handles = b"", []
            poll.unregister(handle)
            del silent[handle]
            guardian = becoming.Guardian(connection, line, handles)
            if guardian.has_spoken and _fork(guardian) == 0:
                return guardian
            guardian.close()


def _accept(listener: socket.socket) -> "socket.socket | None":
    try:
        connection, _ = listener.accept()
    except OSError:
        return None  # The guardian is gone again.
    connection.setblocking(True)
    return connection


def _fork(guardian: becoming.Guardian) -> int:
    """Fork as `os.fork` does; the child is the guardian's already, if it can be forked into its namespace. -1
    = the fork failed, and the guardian was told why."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    child = -1
    try:
        if guardian.bears_forks:
            kernel.enter_namespace(guardian.namespaces[0], kernel.CLONE_NEWPID)
            child = becoming.fork_orphan()
        else:
            child = os.fork()
    except OSError as error:
        becoming.say(guardian.connection, "cold the preloader cannot fork (%s)" % error.strerror)
    if child and guardian.bears_forks:
        kernel.enter_namespace(own, kernel.CLONE_NEWPID)
    os.close(own)
    return child


def _answer(control: socket.socket) -> bool:
    """Tell the process that started this one that programs are taken; return False if it is gone."""
    try:
        return bool(control.recv(16)) and bool(control.send(b"!"))
    except OSError:
        return False


def _is_memory_short() -> bool:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = dict(line.split(":", 1) for line in file)
        free, total = (int(sizes[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return False
    return free * _SHORT_PART < total
