"""The listening sockets of a bucket process.

The parent process opens the sockets before it starts the bucket process, and keeps them open. While no bucket
process runs, connections wait, and the addresses stay the same.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from socket import socket as Socket  # noqa: N812 beside a module of that name

import msgspec

from trainshed.buckets.setup import BucketSetup
from trainshed.replica.system.listening import listen_tcp, listen_unix


class Listeners:
    """The listening sockets by name. A socket without an address in the setup is missing.

    - `gateway`: Unix socket for the API's gateway.
    - `replicas`: Unix socket for the replicas' relays.
    - `plain`: TCP port.
    - `secure`: TCP port with TLS.
    """

    def __init__(self, sockets: Mapping[str, Socket] | None = None) -> None:
        self._sockets = dict(sockets or {})
        #: The files of the Unix sockets, as (path, device, inode).
        self._files: list[tuple[Path, int, int]] = []

    @staticmethod
    def open(setup: BucketSetup, passed: Mapping[str, Socket] | None = None) -> "Listeners":
        """Open the listening sockets at the addresses of a setup. `passed`: sockets that already listen.
        Raises OSError."""
        listeners = Listeners(passed)
        try:
            listeners._listen(setup)
        except OSError:
            listeners.close()
            raise
        for listener in listeners.sockets().values():
            listener.setblocking(False)
        return listeners

    @staticmethod
    def inherit(text: str) -> "Listeners":
        """Return the sockets inherited from the parent process. `text`: the result of `encode` there."""
        handles = msgspec.json.decode(text, type=dict[str, int])
        for handle in handles.values():
            os.set_inheritable(handle, False)
        return Listeners({name: Socket(fileno=handle) for name, handle in handles.items()})

    def sockets(self) -> Mapping[str, Socket]:
        return self._sockets

    @property
    def is_open(self) -> bool:
        return any(listener.fileno() >= 0 for listener in self._sockets.values())

    def ports(self) -> tuple[int, int]:
        """Return the numbers of the TCP ports without and with TLS; 0 = no such port."""
        plain, secure = (
            int(self._sockets[name].getsockname()[1]) if name in self._sockets else 0
            for name in ("plain", "secure")
        )
        return plain, secure

    def close(self) -> None:
        """Stop listening, and remove the socket files unless another process has replaced them. Further calls
        have no effect."""
        for listener in self._sockets.values():
            listener.close()
        for path, device, inode in self._files:
            with contextlib.suppress(OSError):
                status = path.stat()
                if (status.st_dev, status.st_ino) == (device, inode):
                    path.unlink()
        self._files.clear()

    def _listen(self, setup: BucketSetup) -> None:
        if setup.host:
            if "plain" not in self._sockets:
                self._sockets["plain"] = listen_tcp(setup.host, setup.port)
            if setup.certificate is not None and "secure" not in self._sockets:
                self._sockets["secure"] = _secure(setup.host, setup.tls_port)
        for name, path in (("gateway", setup.gateway), ("replicas", setup.replicas)):
            self._sockets[name] = listen_unix(Path(path))
            made = Path(path).stat()
            self._files.append((Path(path), made.st_dev, made.st_ino))


def encode(handles: dict[str, int]) -> str:
    """Return the file descriptors by socket name as text for `Listeners.inherit`."""
    return msgspec.json.encode(handles).decode()


def _secure(host: str, port: int) -> socket.socket:
    """Listen with TLS. If the default port is in use, listen on any free port. Clients read the number from a
    file."""
    try:
        return listen_tcp(host, port)
    except OSError:
        return listen_tcp(host, 0)
