"""Determines whether a client of a replica's endpoint on the loopback is a process of that replica.

The kernel lists the user of the client's socket (/proc/net/tcp). The socket's inode leads to the processes
that have it open. If a replica has its own users, the socket's user decides. Otherwise the client must be a
descendant of the replica's shim. A client that has exited does not belong to the replica.
"""

import os
import socket
import struct
from collections.abc import Sequence

from trainshed.replica.system import processes

Address = tuple[str, int]


class Peers:
    """Recognizes the processes of one replica by their connections."""

    def __init__(self, shim: int, users: Sequence[int] = ()) -> None:
        """`shim`: the shim's process ID in this process's /proc. `users`: (first, count) of the replica's own
        user IDs; () if it has none. Opens nothing."""
        self._shim = shim
        self._users = range(users[0], users[0] + users[1]) if users else None

    def belongs(self, connection: socket.socket) -> bool:
        """Whether the client of an accepted IPv4 connection is a process of the replica."""
        try:
            # The client's socket has the same two addresses in reverse order.
            own, other = connection.getpeername(), connection.getsockname()
        except OSError:
            # The client has already disconnected, so its process does not matter.
            return False
        # The kernel lists sockets in pieces, and may omit an entry that moves to an earlier piece. So search
        # the list twice.
        user, inode = _find_socket(own, other) or _find_socket(own, other) or (0, 0)
        if self._users is not None:
            return inode > 0 and user in self._users
        # The process ID may have been reused since the search, so check the process again.
        link = "socket:[%d]" % inode
        return inode > 0 and any(
            _has_open(process, link) and self._is_below(process)
            for process in processes.descendants(self._shim)
        )

    def _is_below(self, process: int) -> bool:
        while process > 1:
            fields = processes.stat(process)
            if not fields:
                return False
            process = int(fields[1])
            if process == self._shim:
                return True
        return False


def _find_socket(own: Address, other: Address) -> tuple[int, int] | None:
    """Return (user, inode) of the socket with these addresses, or None if it does not exist."""
    for name, prefix in (("tcp", b""), ("tcp6", b"\0" * 10 + b"\xff\xff")):
        ends = [
            b"%s:%04X" % (_hexadecimal(prefix + socket.inet_aton(host)), port) for host, port in (own, other)
        ]
        _, is_listed, rest = processes.read("/proc/self/net/" + name).partition(
            b": %s %s " % (ends[0], ends[1])
        )
        if is_listed:
            fields = rest.split(maxsplit=7)
            return int(fields[4]), int(fields[6])
    return None


def _hexadecimal(address: bytes) -> bytes:
    return b"".join(b"%08X" % word for word in struct.unpack("=%dI" % (len(address) // 4), address))


def _has_open(process: int, link: str) -> bool:
    directory = "/proc/%d/fd" % process
    try:
        # Check the newest file descriptors first: a connecting socket is usually new.
        for name in reversed(os.listdir(directory)):
            try:
                if os.readlink("%s/%s" % (directory, name)) == link:
                    return True
            except OSError:
                continue
    except OSError:
        pass  # The process has exited, or belongs to another user. In both cases, it does not count.
    return False
