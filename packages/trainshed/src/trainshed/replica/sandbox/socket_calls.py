"""Makes two socket calls, bind and connect, in the shim on behalf of a replica's program. So replicas can
share the machine's network.

- A bind of the cluster port to the wildcard address becomes a bind to the replica's own address. So every
  replica can have port 2222 (spec/program#hostnames), even if its program always uses 0.0.0.0.
- The program cannot bind other replicas' addresses. It cannot bind the service's ports either, even while the
  service is stopped.
- A connection to the placeholder addresses of Google's hosts goes to the replica's own endpoint.
- A connection to the cluster port of localhost goes to the replica's own address.

The kernel notifies the shim of these calls (seccomp_unotify(2), `call_filter`). The shim itself makes every
bind of an internet address, with the bytes that it has checked. So later changes by the program have no
effect (TOCTOU). The kernel makes each connect that is not redirected: the redirection is a convenience and
not a barrier.
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
"""Prefix of an IPv4 address that is encoded as an IPv6 address."""
PORTS = 3
"""Number of ports that each replica has on its address: the cluster port and the endpoint's next ports."""

_PIDFD_GETFD = 438
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_CONTINUE = 1
_BY_A_FORK = -1
"""Result of a call that a fork of the shim makes. The fork then responds to the kernel."""
_MAX_FORKS = 64
"""Maximum number of forks. Neither the forks nor their memory count as the program's."""
_REQUEST = struct.Struct("QIIiIQQQQQQQ")
_ANSWER = struct.Struct("QqiI")

_MAX_ADDRESS = 128
"""Maximum bytes of a socket address in the kernel."""
_FIRST_FREE_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


def install(shim: socket.socket, network: protocol.Network, *, in_image: bool = False) -> bool | None:
    """Have the shim make socket calls for the program, if this is necessary and the kernel supports it.
    Returns whether connect is one of these calls, or None if the shim makes no calls. `in_image`: the program
    may create setuid files, as installers of packages do."""
    connects = bool(network.certificate)
    if not (network.cluster_port or connects):
        return None
    try:
        send_handle(shim, call_filter.install(connect=connects, set_user_id=in_image))
    except OSError:
        return None
    return connects


def send_handle(shim: socket.socket, handle: int) -> None:
    """Send the shim the file descriptor for the kernel's notifications; -1 = none. Raises OSError."""
    if handle >= 0:
        unix_sockets.send(shim, b"asked\n", handle)
        os.close(handle)


def redirections(own: str, port: int, cluster_port: "int | None") -> dict[Address, Address]:
    """Return the redirections of connections, by their original address:

    - Google's hosts lead to the replica's endpoint (`own`:`port`), and with TLS to the next port.
    - The cluster port of localhost leads to the replica's own address.
    """
    plain = (own, port)
    google = {(GOOGLE, 443): (own, port + 1), (GOOGLE, 80): plain, (_METADATA, 80): plain}
    if cluster_port is None:
        return google
    return google | {(_LOCALHOST, cluster_port): (own, cluster_port)}


class SocketCalls:
    """The shim's part: makes the filtered socket calls of the program."""

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
        #: The file descriptor that `call_filter.install` returned, now owned by this object.
        self._handle = handle
        #: The replica's address.
        self._own = own
        #: The cluster port.
        self._port = port
        #: New destinations of connections, by their original address.
        self._redirected = redirected
        #: Ports that the program can bind only on the replica's own address.
        self._kept = kept
        #: Called with the port and the error number (0 = success) of each bind of an internet address.
        self._on_bind = on_bind
        #: Process IDs of the forks that connect.
        self._forks: set[int] = set()
        self._buffer = bytearray(_REQUEST.size)
        self._bind = call_filter.number_of(call_filter.BIND) or 0
        self._can_access_processes = call_filter.can_access_processes()

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
            # The calling process has died, or was interrupted and will repeat the call. Neither case needs an
            # answer.
            return error.errno in (errno.EINTR, errno.ENOENT)
        question, process, _, number, _, _, handle, pointer, length, _, _, _ = _REQUEST.unpack(self._buffer)
        call = _Call(self._handle, question, number, process, handle)
        made = self._execute(call, pointer, length)
        if made != _BY_A_FORK:
            call.answer(made)
        return True

    def _execute(self, call: "_Call", pointer: int, length: int) -> int | None:
        """Make the call for the process. Returns one of:

        - the error number of the call; 0 = success
        - None: the kernel must make the call unchanged
        - `_BY_A_FORK`: a fork makes the call
        """
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
        # The call may block, which must not block the shim. So a fork of the shim makes the call.
        if len(self._forks) == _MAX_FORKS:
            return errno.EAGAIN
        try:
            fork = kernel.fork_helper(lambda: call.answer(call.do(call_filter.CONNECT, address)))
        except OSError:
            return errno.EAGAIN
        self._forks.add(fork)
        return _BY_A_FORK

    def on_exit(self, child: int) -> None:
        """Handle the exit of a child of the shim. The child may be one of the forks."""
        self._forks.discard(child)

    def _bind_for(self, call: "_Call", address: bytes | None, length: int) -> int | None:
        # If this shim can access other processes, reject the bind of a process with unreadable memory.
        # Otherwise unreadable memory is usual, so the kernel makes the bind unchanged.
        hidden = errno.EACCES if self._can_access_processes else None
        if address is None:
            return hidden
        if len(address) < length:
            return errno.EFAULT
        # The kernel makes a bind of another family. An address that is too short to have a family (-1) may be
        # the wildcard address, so check it here.
        if _family(address) not in (-1, socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
            return None
        host, port = _address(address)
        parts = host.split(".")
        if parts[0] == "127" and 64 <= int(parts[1]) < 128 and host != self._own:
            # Another replica may have this address, because it is in 127.64.0.0/10.
            return errno.EADDRNOTAVAIL
        if port in self._kept and host != self._own:
            return errno.EADDRINUSE
        is_shared = _is_wildcard(address) or (host, port) in self._redirected
        if self._port and 0 <= port - self._port < PORTS and is_shared:
            address = _encode_like(address, (self._own, port))
        # The shim may bind a privileged port, but it must not do so for programs (confused deputy).
        first = processes.read(_FIRST_FREE_PORT).strip()
        if 0 < port < (int(first) if first.isdigit() else 1024):
            return errno.EACCES
        made = call.do(call_filter.BIND, address)
        if self._on_bind is not None and made is not None:
            self._on_bind(port, made)
        return hidden if made is None else made


class _Call(NamedTuple):
    """A notification of the kernel: `process` (the ID of a process or a thread) makes the system call
    `number` on the file descriptor `handle`."""

    listener: int
    question: int
    number: int
    process: int
    handle: int

    def answer(self, made: int | None) -> None:
        """Respond to the kernel with the call's error number; None = the kernel must make the call."""
        error, flags = (0, _CONTINUE) if made is None else (-made, 0)
        with contextlib.suppress(OSError):  # The process has exited and needs no answer.
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(self.question, 0, error, flags))

    def do(self, call: str, address: bytes) -> int | None:
        """Make the call with the bytes `address` on the process's socket. Returns the error number, 0 for
        success, or None if a security policy forbids access to the process."""
        number = call_filter.number_of(call)
        assert number is not None
        try:
            lent = _pidfd(self.process)
            try:
                # If the process has exited and its ID was reused, the address and the socket are wrong.
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
        # The ID may be that of a thread, which has no pidfd. So use the thread's process.
        for line in processes.read("/proc/%d/status" % process).splitlines():
            if line.startswith(b"Tgid:"):
                return kernel.process_handle(int(line.split()[1]))
        raise


def _read(process: int, pointer: int, length: int) -> bytes | None:
    """Read a process's memory. Returns fewer bytes at the end of the memory, or None if the memory is
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
    """Return the family of a socket address, or -1 if the address is too short to contain one."""
    return struct.unpack_from("=H", address)[0] if len(address) >= 2 else -1


def _address(address: bytes) -> Address:
    """Return a socket address as (IPv4 address, port). The IPv4 address is "" for an IPv6 address without an
    IPv4 address in it. The result is ("", 0) for other families."""
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
    """Encode an IPv4 address in the address family of the program's `address`."""
    host, port = socket.inet_aton(place[0]), struct.pack(">H", place[1])
    if _family(address) == socket.AF_INET6:
        return address[:2] + port + address[4:8] + _MAPPED + host + bytes(4)
    return struct.pack("=H", socket.AF_INET) + port + host + bytes(8)
