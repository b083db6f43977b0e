"""Provides the part of `socket` that is used here, without the modules that `socket` loads (`enum`,
`selectors` and their own), because starts on other machines wait for those (docs/adr/0109). Families and
kinds are plain numbers. Runs on Python 3.6."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import (
        AF_INET,
        AF_INET6,
        AF_NETLINK,
        AF_UNIX,
        AF_UNSPEC,
        CMSG_SPACE,
        IPPROTO_TCP,
        MSG_DONTWAIT,
        MSG_PEEK,
        SCM_RIGHTS,
        SHUT_RDWR,
        SHUT_WR,
        SO_REUSEADDR,
        SOCK_CLOEXEC,
        SOCK_DGRAM,
        SOCK_NONBLOCK,
        SOCK_RAW,
        SOCK_STREAM,
        SOL_SOCKET,
        TCP_NODELAY,
        fromfd,
        inet_aton,
        inet_ntoa,
        inet_ntop,
        sethostname,
        socket,
        socketpair,
        timeout,
    )
else:
    try:
        import _socket as _core
    except ImportError:  # Not CPython.
        import socket as _core
    globals().update((_name, getattr(_core, _name)) for _name in dir(_core) if _name[0] != "_")

    if _core.__name__ == "_socket":

        class socket(_core.socket):  # noqa: N801 - in the place of that one
            """Like `socket.socket`, without `makefile` and the other methods that are not used here."""

            __slots__ = ()

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.close()

            def accept(self):
                """Accept a connection, as `socket.socket.accept` does."""
                handle, address = self._accept()
                taken = socket(self.family, self.type, self.proto, handle)
                if _core.getdefaulttimeout() is None and self.gettimeout():
                    taken.setblocking(True)
                return taken, address

        def socketpair():
            """Return two connected Unix stream sockets."""
            made = _core.socketpair()
            return tuple(socket(one.family, one.type, one.proto, one.detach()) for one in made)

        def fromfd(handle, family, kind, proto=0):
            """Return a socket of a copy of the handle, as `socket.fromfd` does."""
            return socket(family, kind, proto, _core.dup(handle))


__all__ = [
    "AF_INET",
    "AF_INET6",
    "AF_NETLINK",
    "AF_UNIX",
    "AF_UNSPEC",
    "CMSG_SPACE",
    "IPPROTO_TCP",
    "MSG_DONTWAIT",
    "MSG_PEEK",
    "SCM_RIGHTS",
    "SHUT_RDWR",
    "SHUT_WR",
    "SOCK_CLOEXEC",
    "SOCK_DGRAM",
    "SOCK_NONBLOCK",
    "SOCK_RAW",
    "SOCK_STREAM",
    "SOL_SOCKET",
    "SO_REUSEADDR",
    "TCP_NODELAY",
    "fromfd",
    "inet_aton",
    "inet_ntoa",
    "inet_ntop",
    "sethostname",
    "socket",
    "socketpair",
    "timeout",
]
