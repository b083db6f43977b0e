"""A small process that forks shims in a millisecond, so that no replica pays for an interpreter's start.

The service starts it before it has threads, sockets or a database; if it dies, another is started and running
shims do not notice. It holds nothing that matters. Runs on Python 3.6.

Spoken over a stream socket pair: one JSON line {"slot": PATH, "incarnation": N} with one file handle beside it,
the shim's connection to the service; or {"probe": PATH}, answered on that handle by one line {"level": LEVEL}.
A request that dies with the zygote closes its handle, which the other end sees.
"""

import array
import gc
import os
import signal
import socket

from trainshed.replica import protocol, sandbox, shim, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run(handle: int) -> "NoReturn":
    """Be the zygote until the other end of `handle` closes."""
    # Away from the standard handles, which become /dev/null, and from everything else that was inherited.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    _let_go(connection.fileno())
    os.setsid()
    os.chdir("/")
    system.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Children are nobody's business here: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    _serve(connection)
    os._exit(0)


def _let_go(keep: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    system.close_all(handle for handle in system.open_handles() if handle > 2 and handle != keep)


def _serve(connection: socket.socket) -> None:
    lines = protocol.Lines()
    handles: "list[int]" = []
    space = socket.CMSG_SPACE(array.array("i").itemsize * 16)
    while True:
        data, ancillary, _, _ = connection.recvmsg(65536, space)
        for _, kind, content in ancillary:
            if kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                handles.extend(received)
        if not data:
            return
        for message in lines.feed(data):
            handle = handles.pop(0)
            os.set_inheritable(handle, False)
            if os.fork() == 0:
                _become(message, handle, [connection.fileno(), *handles])
            os.close(handle)


def _become(message: "protocol.Message", handle: int, close: "list[int]") -> None:
    """In the child: be a shim, or a probe, and end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        for other in close:
            os.close(other)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        if "probe" in message:
            connection.sendall(protocol.encode({"level": sandbox.probe(message["probe"])}))
        else:
            system.name_process("ts-shim")
            shim.main(message["slot"], message["incarnation"], connection)
    finally:
        os._exit(0)
