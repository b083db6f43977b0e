"""Tells who connects to a replica's endpoint: a process of the replica, or one of the others that share the
machine's loopback.

The kernel knows the user of the client's end of a connection (sock_diag(7), else /proc/net/tcp), and by its
inode the processes that hold it. If a replica has its own users, the user decides; otherwise the process has
to descend from its shim. A client that cannot be found, because it has died meanwhile, does not belong to
it.
"""

import os
import socket
import struct
from collections.abc import Iterable, Sequence

from trainshed.replica.system import processes

Address = tuple[str, int]


_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_TUPLE = struct.Struct("=2s2s16s16sIII")
_ANY_COOKIE = 0xFFFFFFFF
_BEFORE_TUPLE = _HEADER.size + 4
_USER_AND_INODE = struct.Struct("=12xII")


class Peers:
    """Recognises the processes of one replica by their connections."""

    def __init__(self, shim: int, users: Sequence[int] = ()) -> None:
        """`shim`: its process id in this process's /proc. `users`: (first, count) of the replica's own
        user ids, () = it has none. Opens nothing."""
        self._shim = shim
        self._users = range(users[0], users[0] + users[1]) if users else None
        self._asking: socket.socket | None = None

    def belongs(self, connection: socket.socket) -> bool:
        """Whether the client of an accepted IPv4 connection is a process of the replica."""
        try:
            # The client's end has the same two addresses in reverse.
            own, other = connection.getpeername(), connection.getsockname()
        except OSError:
            return False  # The client has hung up.
        user, inode = self._asked(own, other) or _listed(own, other)
        if not inode:
            return False
        if self._users is not None:
            return user in self._users
        return self._holds(inode)

    def _asked(self, own: Address, other: Address) -> tuple[int, int] | None:
        """Return (user, inode) of the socket with these addresses from the kernel; None if it does not
        tell."""
        try:
            if self._asking is None:
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                self._asking = socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)
            wanted = _tuple(own, other)
            body = _QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + wanted
            size = _HEADER.size + len(body)
            self._asking.sendto(_HEADER.pack(size, _BY_FAMILY, _REQUEST, 0, 0) + body, (0, 0))
            # The answer is there already: the kernel answers during the request.
            answer = self._asking.recv(4096)
        except OSError:
            return None
        tail = _BEFORE_TUPLE + _TUPLE.size
        if (
            len(answer) < tail + _USER_AND_INODE.size
            or _HEADER.unpack_from(answer)[1] != _BY_FAMILY
        ):
            return None
        if answer[_BEFORE_TUPLE : _BEFORE_TUPLE + 4] != wanted[:4]:
            return None  # It may be a socket that listens at the same port.
        user, inode = _USER_AND_INODE.unpack_from(answer, tail)
        return user, inode

    def _holds(self, inode: int) -> bool:
        """Whether a process of the replica holds the socket with this inode."""
        link = "socket:[%d]" % inode
        return (
            self._found(processes.family(self._shim), link)
            # The first search may miss a process that is just being forked; this one misses none.
            or self._found(processes.descendants(self._shim), link)
        )

    def _found(self, candidates: Iterable[int], link: str) -> bool:
        # A process id may have been reused since it was found.
        return any(_has_open(process, link) and self._is_below(process) for process in candidates)

    def _is_below(self, process: int) -> bool:
        while process > 1:
            fields = processes.stat(process)
            if not fields:
                return False
            process = int(fields[1])
            if process == self._shim:
                return True
        return False


def _tuple(own: Address, other: Address) -> bytes:
    """Return both ends of a connection in the kernel's binary form."""
    return _TUPLE.pack(
        struct.pack(">H", own[1]),
        struct.pack(">H", other[1]),
        socket.inet_aton(own[0]),
        socket.inet_aton(other[0]),
        0,
        _ANY_COOKIE,
        _ANY_COOKIE,
    )


def _listed(own: Address, other: Address) -> tuple[int, int]:
    """Return (user, inode) of the socket with these addresses from /proc/net/tcp; (0, 0) = there is none."""
    for name, prefix in (("tcp", b""), ("tcp6", b"\0" * 10 + b"\xff\xff")):
        ends = [
            "%s:%04X" % (_hexadecimal(prefix + socket.inet_aton(h)), p) for h, p in (own, other)
        ]
        for line in processes.read("/proc/self/net/" + name).decode("ascii").splitlines():
            fields = line.split()
            if fields[1:3] == ends:
                return int(fields[7]), int(fields[9])
    return 0, 0


def _hexadecimal(address: bytes) -> str:
    return "".join("%08X" % word for word in struct.unpack("=%dI" % (len(address) // 4), address))


def _has_open(process: int, link: str) -> bool:
    directory = "/proc/%d/fd" % process
    try:
        # The newest handles first: a connecting socket is usually new.
        for name in reversed(os.listdir(directory)):
            try:
                if os.readlink("%s/%s" % (directory, name)) == link:
                    return True
            except OSError:
                continue
    except OSError:
        pass  # The process is gone, or another user's.
    return False
