"""Makes two socket calls for a replica's program in its shim, so that replicas can share the machine's
network.

A bind of the cluster port to the wildcard address becomes one to the replica's own address. So every replica
can have port 2222 (spec/program#hostnames), even if its program only uses 0.0.0.0. The program cannot bind
other replicas' addresses, nor the service's ports, even while the service is stopped. A connection to the
placeholder addresses of Google's hosts goes to the replica's own endpoint, and localhost's cluster port is
the replica's own. The kernel notifies the shim of these calls (seccomp_unotify(2), `call_filter`).

The shim itself makes every bind of an internet address, with the checked bytes, so that later changes by the
program have no effect (TOCTOU). The kernel makes a connect unless it is redirected, which is a convenience
and not a barrier.
"""

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter
from trainshed.replica.system import kernel, processes, unix_sockets

Address = tuple[str, int]

GOOGLE = "127.63.0.1"
"""Address of Google's intercepted hosts and of the metadata server in a replica's hosts file."""
_LOCALHOST = "127.0.0.1"
_METADATA = "169.254.169.254"
"""Address of the metadata server on Google's machines, for clients that use no name."""

_MAPPED = b"\0" * 10 + b"\xff\xff"
"""Prefix of IPv4 addresses within IPv6."""
PORTS = 3
"""The cluster port and the endpoint's next ports: each replica has them on its own address."""

_PIDFD_GETFD = 438
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_CONTINUE = 1
_BY_A_FORK = -1
"""A fork of the shim makes the call, and answers."""
_MAX_FORKS = 64
"""Maximum number of forks. They do not count as the program's processes, nor does their memory."""
_REQUEST = struct.Struct("QIIiIQQQQQQQ")
_ANSWER = struct.Struct("QqiI")

_MAX_ADDRESS = 128
"""Maximum bytes of an address in the kernel."""
_FIRST_FREE_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


def install(
    shim: socket.socket, network: protocol.Network, *, in_image: bool = False
) -> bool | None:
    """Have the shim make some calls for the program, if necessary and supported by the kernel. Returns
    whether connect is among them, None = no calls. `in_image`: the program may create setuid files, like
    installers of packages."""
    connects = bool(network.certificate)
    if not (network.cluster_port or connects):
        return None
    try:
        send_handle(shim, call_filter.install(connect=connects, set_user_id=in_image))
    except OSError:
        return None
    return connects


def send_handle(shim: socket.socket, handle: int) -> None:
    """Send the shim the handle for the kernel's notifications; -1 = none. Raises OSError."""
    if handle >= 0:
        unix_sockets.send(shim, b"asked\n", handle)
        os.close(handle)


def redirections(own: str, port: int, cluster_port: "int | None") -> dict[Address, Address]:
    """Return the redirections of connections: from Google's hosts to the replica's endpoint (`own`:`port`),
    with TLS to the next port, and from localhost's cluster port."""
    plain = (own, port)
    google = {(GOOGLE, 443): (own, port + 1), (GOOGLE, 80): plain, (_METADATA, 80): plain}
    if cluster_port is None:
        return google
    return google | {(_LOCALHOST, cluster_port): (own, cluster_port)}


class SocketCalls:
    """The shim's side: it makes the socket calls of the program."""

    def __init__(
        self,
        handle: int,
        own: str,
        port: "int | None",
        redirected: Mapping[Address, Address],
        kept: Container[int] = (),
        *,
        on_bind: "Callable[[int, int], None] | None" = None,
    ) -> None:
        #: The handle that `call_filter.install` returned, owned from here on.
        self._handle = handle
        #: The replica's address.
        self._own = own
        #: The cluster port.
        self._port = port
        #: Redirected addresses of connections.
        self._redirected = redirected
        #: Ports that can be bound on the replica's own address alone.
        self._kept = kept
        #: Called with the port and the error number (0 = none) of each bind of an internet address.
        self._on_bind = on_bind
        #: Forks that connect.
        self._forks: set[int] = set()
        self._buffer = bytearray(_REQUEST.size)
        self._bind = call_filter.number_of(call_filter.BIND) or 0
        self._takes_part = call_filter.can_take_part()

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        os.close(self._handle)

    def answer(self) -> bool:
        """Answer one pending notification, if any. Returns False if no filtered process is left."""
        ready = select.poll()
        ready.register(self._handle, select.POLLIN)
        events = dict(ready.poll(0)).get(self._handle, 0)
        if not events & select.POLLIN:
            return not events & (select.POLLHUP | select.POLLERR)
        self._buffer[:] = bytes(len(self._buffer))
        try:
            fcntl.ioctl(self._handle, _RECEIVE, self._buffer)
        except OSError as error:
            # The calling process has died, or was interrupted and repeats the call.
            return error.errno in (errno.EINTR, errno.ENOENT)
        question, process, _, number, _, _, handle, pointer, length, _, _, _ = _REQUEST.unpack(
            self._buffer
        )
        call = _Call(self._handle, question, number, process, handle)
        made = self._make(call, pointer, length)
        if made != _BY_A_FORK:
            call.answer(made)
        return True

    def _make(self, call: "_Call", pointer: int, length: int) -> int | None:
        """Make the call for the process. Returns the error number, 0 = none; None = the kernel must make the
        call unchanged; `_BY_A_FORK`."""
        # The kernel reads the length as a C int.
        length = (length & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        if not 0 <= length <= _MAX_ADDRESS:
            return errno.EINVAL
        address = _read(call.process, pointer, length)
        if call.number == self._bind:
            return self._bind_for(call, address, length)
        there = self._redirected.get(_address(address)) if address is not None else None
        if address is None or there is None:
            return None
        address = _encode_like(address, there)
        if there[1] != self._port:
            return call.do(call_filter.CONNECT, address)
        # The program may let the call block, but the shim must not.
        if len(self._forks) == _MAX_FORKS:
            return errno.EAGAIN
        try:
            fork = kernel.fork_helper(lambda: call.answer(call.do(call_filter.CONNECT, address)))
        except OSError:
            return errno.EAGAIN
        self._forks.add(fork)
        return _BY_A_FORK

    def on_exit(self, child: int) -> None:
        """Record the end of a child of the shim, which may be one of the forks."""
        self._forks.discard(child)

    def _bind_for(self, call: "_Call", address: bytes | None, length: int) -> int | None:
        # A process with unreadable memory may not bind, if the memory of others is readable.
        hidden = errno.EACCES if self._takes_part else None
        if address is None:
            return hidden
        if len(address) < length:
            return errno.EFAULT
        # The wildcard address may have no family.
        if _family(address) not in (-1, socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
            return None
        host, port = _address(address)
        parts = host.split(".")
        if parts[0] == "127" and 64 <= int(parts[1]) < 128 and host != self._own:
            # Another replica may have it: it is in 127.64.0.0/10.
            return errno.EADDRNOTAVAIL
        if port in self._kept and host != self._own:
            return errno.EADDRINUSE
        is_shared = _is_wildcard(address) or (host, port) in self._redirected
        if self._port and 0 <= port - self._port < PORTS and is_shared:
            address = _encode_like(address, (self._own, port))
        # The shim may bind it, but its rights must not extend to programs (confused deputy).
        first = processes.read(_FIRST_FREE_PORT).strip()
        if 0 < port < (int(first) if first.isdigit() else 1024):
            return errno.EACCES
        made = call.do(call_filter.BIND, address)
        if self._on_bind is not None and made is not None:
            self._on_bind(port, made)
        return hidden if made is None else made


class _Call(NamedTuple):
    """A notification of the kernel: `process`, or a thread of it, makes the system call `number` on the file
    handle `handle`."""

    listener: int
    question: int
    number: int
    process: int
    handle: int

    def answer(self, made: int | None) -> None:
        """Answer a call with its error number; None = the kernel must make the call."""
        error, flags = (0, _CONTINUE) if made is None else (-made, 0)
        with contextlib.suppress(OSError):  # It is gone.
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(self.question, 0, error, flags))

    def do(self, call: str, address: bytes) -> int | None:
        """Make the call with the bytes `address` on the process's socket. Returns the error number, 0 = none;
        None = a security policy forbids it."""
        number = call_filter.number_of(call)
        assert number is not None
        try:
            lent = _pidfd(self.process)
            try:
                # The process may have died and its ID been reused: then the address and the socket are wrong.
                fcntl.ioctl(self.listener, _IS_VALID, struct.pack("Q", self.question))
                copy = kernel.syscall(_PIDFD_GETFD, "pidfd_getfd", lent, self.handle, 0)
            finally:
                os.close(lent)
        except OSError as error:
            return errno.EBADF if error.errno == errno.EBADF else None
        try:
            kernel.syscall(number, call, copy, address, len(address))
        except OSError as error:
            return error.errno
        finally:
            os.close(copy)
        return 0


def _pidfd(process: int) -> int:
    try:
        return kernel.process_handle(process)
    except OSError:
        # Handles exist only of processes, and this may be a thread.
        for line in processes.read("/proc/%d/status" % process).splitlines():
            if line.startswith(b"Tgid:"):
                return kernel.process_handle(int(line.split()[1]))
        raise


def _read(process: int, pointer: int, length: int) -> bytes | None:
    """Read a process's memory. Returns fewer bytes at the end of the memory, None if the memory is
    unreadable."""
    try:
        memory = os.open("/proc/%d/mem" % process, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.pread(memory, length, pointer)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)


def _family(address: bytes) -> int:
    """Return the family of a socket address; -1 = the address has none."""
    return struct.unpack_from("=H", address)[0] if len(address) >= 2 else -1


def _address(address: bytes) -> Address:
    """Return a socket address as (IPv4 address, port), with "" if it is not IPv4, and ("", 0) for other
    families."""
    host = b""
    if len(address) >= 8 and _family(address) in (socket.AF_UNSPEC, socket.AF_INET):
        host = address[4:8]
    elif len(address) >= 24 and _family(address) == socket.AF_INET6:
        host = address[20:24] if address[8:20] == _MAPPED else b""
    else:
        return "", 0
    return socket.inet_ntoa(host) if host else "", struct.unpack_from(">H", address, 2)[0]


def _is_wildcard(address: bytes) -> bool:
    if _family(address) == socket.AF_INET6:
        return not any(address[8:24]) or _address(address)[0] == "0.0.0.0"
    return not any(address[4:8])


def _encode_like(address: bytes, place: Address) -> bytes:
    """Encode an IPv4 address in the format of the program's `address`."""
    host, port = socket.inet_aton(place[0]), struct.pack(">H", place[1])
    if _family(address) == socket.AF_INET6:
        return address[:2] + port + address[4:8] + _MAPPED + host + bytes(4)
    return struct.pack("=H", socket.AF_INET) + port + host + bytes(8)
