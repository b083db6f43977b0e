"""What a replica's processes send and receive over TCP, as the kernel counts it for each connection.

Replicas share the machine's network, so there is no counter of a replica's own. The connections that its
processes have open are asked for (sock_diag), and the kernel says what it had counted of each that ends
(SOCK_DESTROY notices). Left out: UDP, Unix sockets, RDMA; and a connection that began and ended between two
looks, unless its addresses say whose it was: the replica's own one, or its endpoint's for storage. What one
process of a replica sends to another one is both sent and received. Runs on Python 3.6.
"""

import errno
import os
import struct
import sys

from trainshed.replica.system import lean_socket as socket
from trainshed.replica.system import sock_diag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator

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
    """One that the kernel told of."""

    __slots__ = ("cookie", "inode", "local", "received", "remote", "sent")

    def __init__(
        self,
        cookie: bytes,
        inode: int,
        local: "tuple[str, int]",
        remote: "tuple[str, int]",
        counts: "tuple[int, int]",
    ) -> None:
        self.cookie = cookie
        #: 0 of one that nobody has open any more.
        self.inode = inode
        self.local = local
        self.remote = remote
        self.sent, self.received = counts


class Traffic:
    """Counts for one incarnation. `address`: the replica's; `storage_port`: that of its endpoint there."""

    __slots__ = ("_address", "_gone", "_known", "_notices", "_received", "_sent", "_storage_port")

    def __init__(self, address: str, storage_port: int) -> None:
        """Raises OSError: this system does not count connections."""
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, "only Linux counts connections")
        self._address = address
        self._storage_port = storage_port
        self._sent = self._received = 0
        #: What was counted of each open connection when it was last looked at.
        self._known: "dict[bytes, tuple[int, int]]" = {}
        #: The same of those that have ended since: their notices are on the way, for which a busy machine may
        #: take several looks. A connection that is forgotten before would count twice.
        self._gone: "dict[bytes, tuple[int, int]]" = {}
        self._notices = sock_diag.listen(_DESTROYED)
        self._notices.setblocking(False)

    def read(self, family: "Iterable[int]") -> "tuple[int, int]":
        """Bytes sent and received so far, by these processes and by those before them. Raises OSError."""
        self._read_notices()
        inodes = _sockets(family)
        if inodes:
            before, self._known = self._known, {}
            for each in _open_connections():
                if each.inode in inodes:
                    self._add(each, before.get(each.cookie, (0, 0)))
                    self._known[each.cookie] = each.sent, each.received
                elif each.cookie in before:
                    # No process has it open any more: the kernel will send its notice.
                    self._known[each.cookie] = before[each.cookie]
            ended = (each for each in before.items() if each[0] not in self._known)
            self._gone.update(ended)
            while len(self._gone) > _MOST_NOTICES:
                del self._gone[next(iter(self._gone))]  # The oldest: its notice found no room.
        return self._sent, self._received

    def fileno(self) -> int:
        """Readable when there are notices to read."""
        return self._notices.fileno()

    def close(self) -> None:
        """End the notices."""
        self._notices.close()

    def _add(self, found: Connection, before: "tuple[int, int]") -> None:
        self._sent += max(0, found.sent - before[0])
        self._received += max(0, found.received - before[1])

    def _read_notices(self) -> None:
        for _ in range(_MOST_NOTICES):
            try:
                data = sock_diag.receive(self._notices)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue  # More notices came than the buffer holds: those connections are not counted.
            for found in _connections(data):
                before = self._known.pop(found.cookie, None) or self._gone.pop(found.cookie, None)
                if before is not None or self._is_ours(found):
                    self._add(found, before or (0, 0))

    def _is_ours(self, ended: Connection) -> bool:
        """Whether a connection that was never seen open was the replica's, by its addresses."""
        (local, port), remote = ended.local, ended.remote
        # A connection to the endpoint has two ends here: only the program's counts.
        is_own = self._address.startswith("127.")
        is_server = is_own and local == self._address and port != self._storage_port
        return is_server or (
            bool(self._storage_port) and remote == (self._address, self._storage_port)
        )


def _sockets(family: "Iterable[int]") -> "set[int]":
    """Inodes of the sockets that processes have open."""
    found: "set[int]" = set()
    for process in family:
        directory = "/proc/%d/fd" % process
        try:
            names = os.listdir(directory)
        except OSError:
            continue  # It has ended, or is nobody's business.
        for name in names:
            try:
                target = os.readlink("%s/%s" % (directory, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def _open_connections() -> "Iterator[Connection]":
    """All of the machine's. Raises OSError."""
    with sock_diag.listen() as asked:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _LIVE)
            for data in sock_diag.answers(asked, request):
                for found in _connections(data):
                    yield found


def _connections(data: bytes) -> "Iterator[Connection]":
    for body in sock_diag.bodies(data):
        if len(body) < _MESSAGE.size:
            continue
        fields = _MESSAGE.unpack_from(body)
        family, cookie = fields[0], fields[9]
        own_port, other_port, own, other = fields[4:8]
        info = sock_diag.attribute(body, _MESSAGE.size, _INFO)
        # What the kernel does not count of a connection is not there.
        if len(info) >= _COUNTS_AT + _COUNTS.size:
            counts = _COUNTS.unpack_from(info, _COUNTS_AT)
            local = _address(family, own), int.from_bytes(own_port, "big")
            remote = _address(family, other), int.from_bytes(other_port, "big")
            yield Connection(cookie, fields[14], local, remote, counts)


def _address(family: int, data: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[:4])
    text = socket.inet_ntop(socket.AF_INET6, data)
    # An IPv4 connection of a socket that serves both, as many servers have one.
    return text[7:] if text.startswith("::ffff:") else text
