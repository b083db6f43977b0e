"""Counts what a replica's processes send and receive over TCP, from the kernel's counters of each connection.

Replicas share the machine's network, so that no counter belongs to one replica alone. The counters of its
open connections are queried (sock_diag), and the kernel reports the final ones of each that ends
(SOCK_DESTROY notices). Not counted are UDP, Unix sockets and RDMA, and connections that began and ended
between two queries, unless their addresses are the replica's own or its storage endpoint's. What one process
of a replica sends to another counts as both sent and received.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator

_INFO = 2
"""The attribute that holds struct tcp_info, and the number of the bit that asks for it, counted from 1."""
_LIVE = 0xFFF & ~(1 << 10) & ~(1 << 6)
"""States of TCP but for those that listen or only wait for a late packet."""
_DESTROYED = 1 << 0 | 1 << 2
"""Groups of notices: TCP over IPv4, over IPv6."""
_MESSAGE = struct.Struct("=BBBB 2s2s16s16s I8s IIIII")
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120
"""Offset of bytes acknowledged and bytes received in struct tcp_info (Linux 4.1)."""
_MOST_NOTICES = 4_000


class Connection:
    """A connection that the kernel reported."""

    def __init__(
        self,
        cookie: bytes,
        inode: int,
        local: tuple[str, int],
        remote: tuple[str, int],
        counts: tuple[int, int],
    ) -> None:
        self.cookie = cookie
        #: Inode of its socket; 0 = no process has it open any more.
        self.inode = inode
        self.local = local
        self.remote = remote
        self.sent, self.received = counts


class Traffic:
    """The TCP traffic of one incarnation. `address`: of the replica. `storage_port`: of its endpoint
    there."""

    def __init__(self, address: str, storage_port: int) -> None:
        """Raises OSError if this system does not count connections' bytes."""
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, "only Linux counts connections")
        self._address = address
        self._storage_port = storage_port
        self._sent = self._received = 0
        #: Counters of each open connection at the last query, by cookie.
        self._known: dict[bytes, tuple[int, int]] = {}
        #: The same of connections that have ended since and whose notices are on the way, which may take
        #: several queries on a busy machine. Forgetting them earlier would count them twice.
        self._gone: dict[bytes, tuple[int, int]] = {}
        self._notices = listen(_DESTROYED)
        self._notices.setblocking(False)

    def read(self, family: Iterable[int]) -> tuple[int, int]:
        """Return the bytes (sent, received) so far by these processes and earlier ones. Raises OSError."""
        self._read_notices()
        inodes = _sockets(family)
        if inodes:
            before, self._known = self._known, {}
            for connection in _open_connections():
                if connection.inode in inodes:
                    # Where others come and go meanwhile, an answer may have a connection twice, or lack it.
                    last = self._known.get(connection.cookie) or before.get(connection.cookie)
                    self._add(connection, last or self._gone.pop(connection.cookie, (0, 0)))
                    self._known[connection.cookie] = connection.sent, connection.received
                elif connection.cookie in before:
                    # No process has it open any more: the kernel will still send its notice.
                    self._known[connection.cookie] = before[connection.cookie]
            ended = (
                connection for connection in before.items() if connection[0] not in self._known
            )
            self._gone.update(ended)
            while len(self._gone) > _MOST_NOTICES:
                del self._gone[next(iter(self._gone))]  # The oldest one's notice was dropped.
        return self._sent, self._received

    def fileno(self) -> int:
        """Return a handle that is readable when there are notices."""
        return self._notices.fileno()

    def close(self) -> None:
        """Stop receiving notices."""
        self._notices.close()

    def _add(self, connection: Connection, before: tuple[int, int]) -> None:
        self._sent += max(0, connection.sent - before[0])
        self._received += max(0, connection.received - before[1])

    def _read_notices(self) -> None:
        for _ in range(_MOST_NOTICES):
            try:
                data = receive(self._notices)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue  # More notices came than the buffer holds: the lost ones are not counted.
            for connection in _connections(data):
                before = self._known.pop(connection.cookie, None) or self._gone.pop(
                    connection.cookie, None
                )
                if before is not None or self._is_ours(connection):
                    self._add(connection, before or (0, 0))

    def _is_ours(self, ended: Connection) -> bool:
        """Whether a connection that was never seen open was the replica's, judged by its addresses."""
        (local, port), remote = ended.local, ended.remote
        # A connection to the endpoint has both ends on this machine: only the program's counts.
        is_own = self._address.startswith("127.")
        is_server = is_own and local == self._address and port != self._storage_port
        return is_server or (
            bool(self._storage_port) and remote == (self._address, self._storage_port)
        )


def _sockets(family: Iterable[int]) -> set[int]:
    """Return the inodes of the sockets that processes have open."""
    inodes: set[int] = set()
    for process in family:
        directory = "/proc/%d/fd" % process
        try:
            names = os.listdir(directory)
        except OSError:
            continue  # The process has ended, or may not be examined.
        for name in names:
            try:
                target = os.readlink("%s/%s" % (directory, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes


def _open_connections() -> Iterator[Connection]:
    """Yield all TCP connections of the machine. Raises OSError."""
    with listen() as requests:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _LIVE)
            for data in answers(requests, request):
                for connection in _connections(data):
                    yield connection


def _connections(data: bytes) -> Iterator[Connection]:
    for body in bodies(data):
        if len(body) < _MESSAGE.size:
            continue
        fields = _MESSAGE.unpack_from(body)
        family, cookie = fields[0], fields[9]
        own_port, other_port, own, other = fields[4:8]
        info = attribute(body, _MESSAGE.size, _INFO)
        # The field is missing if the kernel does not count it.
        if len(info) >= _COUNTS_AT + _COUNTS.size:
            counts = _COUNTS.unpack_from(info, _COUNTS_AT)
            local = _address(family, own), int.from_bytes(own_port, "big")
            remote = _address(family, other), int.from_bytes(other_port, "big")
            yield Connection(cookie, fields[14], local, remote, counts)


def _address(family: int, data: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[:4])
    text = socket.inet_ntop(socket.AF_INET6, data)
    # IPv4 connections of dual-stack sockets, which many servers use, have mapped addresses.
    return text[7:] if text.startswith("::ffff:") else text


_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_DONE, _ERROR = 3, 2
_DUMP = 0x301
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER = 256 << 10
_LONGEST_WAIT = 1.0
"""Seconds to wait for the kernel's answer, which is there once the request is sent."""


def listen(groups: int = 0) -> socket.socket:
    """Open a socket for requests, which also receives notices of these `groups`. Raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
    try:
        opened.bind((0, groups))
        opened.settimeout(_LONGEST_WAIT)
    except OSError:
        opened.close()
        raise
    return opened


def receive(requests: socket.socket) -> bytes:
    """Receive some messages. Raises OSError."""
    return requests.recv(_BUFFER)


def answers(requests: socket.socket, request: bytes) -> Iterator[bytes]:
    """Yield the messages that answer a request for all sockets of a family, some at a time. Raises
    OSError."""
    requests.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
    is_done = False
    while not is_done:
        data = receive(requests)
        is_done = _ends(data)
        yield data


def bodies(data: bytes) -> Iterator[bytes]:
    """Yield the body of each message that describes a socket: one that exists, or, in a notice, one that was
    destroyed."""
    for kind, begin, end in _messages(data):
        if kind in (_BY_FAMILY, _DESTROY):
            yield data[begin:end]


def attribute(body: bytes, at: int, wanted: int) -> bytes:
    """Return an attribute of a body, whose attributes begin at `at`; b"" = it has none such."""
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return b""


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, begin, end) of each message's body."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind = _HEADER.unpack_from(data, at)[:2]
        if length < _HEADER.size:
            return
        yield kind, at + _HEADER.size, min(at + length, len(data))
        at += (length + 3) & ~3


def _ends(data: bytes) -> bool:
    """Whether the answer is complete. Raises OSError if it is a refusal."""
    for kind, begin, _ in _messages(data):
        if kind == _ERROR:
            number = -struct.unpack_from("=i", data, begin)[0]
            raise OSError(number, "sock_diag: %s" % os.strerror(number))
        if kind == _DONE:
            return True
    return False
