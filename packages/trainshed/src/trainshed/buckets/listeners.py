"""The listening sockets of a bucket process.

They are opened by whoever starts the process, and stay open beside it: callers wait in them while there is no
bucket process, and the addresses stay the same.
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
    """The listening sockets by name: `gateway`, the Unix socket of the API's gateway; `replicas`, that of
    the replicas' relays; `plain`, the TCP port; `secure`, the one that speaks TLS. One is missing where
    the setup names no address for it."""

    def __init__(self, sockets: Mapping[str, Socket] | None = None) -> None:
        self._sockets = dict(sockets or {})
        #: The files of the Unix sockets: path, device and inode.
        self._files: list[tuple[Path, int, int]] = []

    @staticmethod
    def opened(setup: BucketSetup, passed: Mapping[str, Socket] | None = None) -> "Listeners":
        """Listen at the addresses of a setup. `passed`: sockets that listen already. Raises OSError."""
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
    def inherited(text: str) -> "Listeners":
        """Returns the sockets inherited from the process that started this one; `text` is the result of
        `encode`."""
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
        """The TCP ports without and with TLS; 0 = there is none."""
        plain, secure = (
            int(self._sockets[name].getsockname()[1]) if name in self._sockets else 0
            for name in ("plain", "secure")
        )
        return plain, secure

    def close(self) -> None:
        """Stop listening, and remove the socket files unless another process uses them by now. It can be
        called again."""
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
    """Returns the descriptors, by the names of the fields, as text for `Listeners.inherited`."""
    return msgspec.json.encode(handles).decode()


def _secure(host: str, port: int) -> socket.socket:
    """Listen with TLS, at any free port if the usual one is taken: nobody asks for it by number."""
    try:
        return listen_tcp(host, port)
    except OSError:
        return listen_tcp(host, 0)
