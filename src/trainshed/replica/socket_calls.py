"""Two socket calls that a replica's shim makes in its program's place, so that replicas can share the machine's network.

A bind of the cluster port on the wildcard address becomes one of the replica's own address: every replica can have port
2222 (SPEC §3), also programs that know no other way than 0.0.0.0. Other replicas' addresses cannot be bound, nor the
service's ports, which are free while it is away. A connection to where Google's hosts are said to be goes to the
replica's own endpoint instead. The kernel asks us (seccomp_unotify(2)); all other calls it makes itself.
This is a convenience and no barrier: who bends its own arguments in between reaches what it could reach anyway.
Runs on Python 3.6.
"""

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct

from trainshed.replica import processes, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Container, Mapping

    Address = tuple[str, int]

GOOGLE = "127.63.0.1"
"""Where the names of Google's hosts that are intercepted, and of its metadata server, lead in a replica's hosts file."""
_METADATA = "169.254.169.254"
"""Where a metadata server is on machines of Google's, for who asks for no name."""

PORTS = 3
"""The cluster port and those of the endpoint behind it: each replica has them on its own address."""

# machine: (the kernel's name of the architecture, then the numbers of bind, connect and seccomp)
_NUMBERS = {
    "x86_64": (0xC000003E, 49, 42, 317),
    "aarch64": (0xC00000B7, 200, 203, 277),
}
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_AT_NUMBER, _AT_ARCHITECTURE = 0, 4
_REQUEST = struct.Struct("QIIiIQQQQQQQ")
_ANSWER = struct.Struct("QqiI")


def listen(*, connect: bool) -> int:
    """Have the kernel ask about this process's and all its descendants' calls of bind, and of `connect` if so. Returns the
    handle that it asks by; -1 on machines whose numbers are not known here. Raises OSError."""
    if not system.LINUX or platform.machine() not in _NUMBERS:
        return -1
    architecture, bind_number, connect_number, seccomp = _NUMBERS[platform.machine()]
    asked = [bind_number] + [connect_number] * connect
    program = [(_LOAD, 0, 0, _AT_ARCHITECTURE), (_IF_EQUAL, 0, len(asked) + 1, architecture)]
    program.append((_LOAD, 0, 0, _AT_NUMBER))
    for place, number in enumerate(asked):
        program.append((_IF_EQUAL, len(asked) - place, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("HxxxxxxP", len(program), ctypes.addressof(held))
    return system.syscall(seccomp, "seccomp", _SET_MODE_FILTER, _NEW_LISTENER, described)


def redirected(own: str, port: int) -> "dict[Address, Address]":
    """Where calls of Google's hosts go: to the replica's endpoint (`own`:`port`), over TLS to the port behind that one."""
    plain = (own, port)
    return {(GOOGLE, 443): (own, port + 1), (GOOGLE, 80): plain, (_METADATA, 80): plain}


class Calls:
    """The shim's side. `handle`: what `listen` returned, ours from here on. `own`: the replica's address; `port`: the
    cluster port. `redirected`: calls that go elsewhere. `kept`: ports that can be had on the replica's own address
    alone."""

    def __init__(
        self,
        handle: int,
        own: str,
        port: int,
        redirected: "Mapping[Address, Address]",
        kept: "Container[int]" = (),
    ) -> None:
        self._handle = handle
        self._own = own
        self._port = port
        self._redirected = redirected
        self._kept = kept
        self._buffer = bytearray(_REQUEST.size)
        self._bind = _NUMBERS[platform.machine()][1]

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        os.close(self._handle)

    def answer(self) -> bool:
        """Answer the one question that can be read now, if there is one. False: nobody is left who could ask."""
        ready = select.poll()
        ready.register(self._handle, select.POLLIN)
        events = dict(ready.poll(0)).get(self._handle, 0)
        if not events & select.POLLIN:
            return not events & (select.POLLHUP | select.POLLERR)
        self._buffer[:] = bytes(len(self._buffer))
        try:
            fcntl.ioctl(self._handle, _RECEIVE, self._buffer)
        except OSError as error:
            # Whoever asked has died meanwhile, or was interrupted and asks again.
            return error.errno in (errno.EINTR, errno.ENOENT)
        question, process, _, number, _, _, handle, pointer, length, _, _, _ = _REQUEST.unpack(
            self._buffer
        )
        made = self._make(number, process, handle, _read(process, pointer, length))
        answer = (question, 0, 0, _CONTINUE) if made is None else (question, 0, -made, 0)
        try:
            fcntl.ioctl(self._handle, _SEND, _ANSWER.pack(*answer))
        except OSError:
            pass  # It is gone.
        return True

    def _make(self, number: int, process: int, handle: int, given: bytes) -> "int | None":
        """Make the call in its place; returns the error number, 0 = none. None: the kernel shall make it as it is."""
        address = _parse(given)
        if address is None:
            return None
        family, host, port = address
        if number == self._bind:
            if _is_anothers(_v4(family, host), self._own):
                return errno.EADDRNOTAVAIL
            if port in self._kept and _v4(family, host) != self._own:
                return errno.EADDRINUSE
            if not 0 <= port - self._port < PORTS or not _is_wildcard(family, host):
                return None
            wanted = _as(family, (self._own, port))
            return _do(process, handle, family, lambda theirs: theirs.bind(wanted))
        there = self._redirected.get((_v4(family, host), port))
        if there is None:
            return None
        wanted = _as(family, there)
        return _do(process, handle, family, lambda theirs: theirs.connect(wanted))


def _do(
    process: int, handle: int, family: int, call: "Callable[[socket.socket], None]"
) -> "int | None":
    """Make a call on a socket of another process's. `process`: the number of whichever of its threads asked."""
    try:
        lent = system.syscall(_PIDFD_OPEN, "pidfd_open", _leader(process), 0)
        try:
            copy = system.syscall(_PIDFD_GETFD, "pidfd_getfd", lent, handle, 0)
        finally:
            os.close(lent)
    except OSError:
        return None  # A policy forbids to take part: then everything is as without us.
    with socket.socket(family, socket.SOCK_STREAM, 0, copy) as theirs:
        try:
            call(theirs)
        except OSError as error:
            return error.errno
    return 0


def _leader(thread: int) -> int:
    """The process that a thread is of: the kernel opens nothing else. The number itself if the thread is gone."""
    for line in processes.read("/proc/%d/status" % thread).splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    return thread


def _read(process: int, pointer: int, length: int) -> bytes:
    try:
        with open("/proc/%d/mem" % process, "rb", 0) as memory:
            memory.seek(pointer)
            return memory.read(min(length, 128))
    except (OSError, OverflowError, ValueError):
        return b""


def _parse(given: bytes) -> "tuple[int, bytes, int] | None":
    """(family, host, port) of an internet address, also of one that says no family; None if it is of another kind."""
    if len(given) < 8:
        return None
    family = struct.unpack_from("=H", given)[0]
    port = struct.unpack_from(">H", given, 2)[0]
    if family in (socket.AF_INET, socket.AF_UNSPEC):
        # The kernel takes the wildcard address without a family as well.
        return socket.AF_INET, given[4:8], port
    if family == socket.AF_INET6 and len(given) >= 24:
        return family, given[8:24], port
    return None


def _is_wildcard(family: int, host: bytes) -> bool:
    return not any(host) or _v4(family, host) == "0.0.0.0"


def _is_anothers(host: str, own: str) -> bool:
    """Whether it is an address that another replica has, or may have: of 127.64.0.0/10, and not this one's."""
    parts = host.split(".")
    return parts[0] == "127" and 64 <= int(parts[1]) < 128 and host != own


def _v4(family: int, host: bytes) -> str:
    """As an IPv4 address; "" if it is none."""
    if family == socket.AF_INET6:
        if host[:12] != b"\0" * 10 + b"\xff\xff":
            return ""
        host = host[12:]
    return socket.inet_ntoa(host)


def _as(family: int, address: "Address") -> "tuple[str, int]":
    """An IPv4 address as sockets of that family take it."""
    host, port = address
    return ("::ffff:" + host if family == socket.AF_INET6 else host), port
