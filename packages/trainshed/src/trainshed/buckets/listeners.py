"""The listening sockets of a bucket process.

They are opened by whoever starts the process, and stay open beside it: callers wait in them while there is no
bucket process, and the addresses stay the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from socket import socket as Socket  # noqa: N812 beside a module of that name

import msgspec
from msgspec import Struct, field

from trainshed.buckets.setup import BucketSetup
from trainshed.replica.system.listening import listen_tcp, listen_unix


class Listeners(Struct):
    """The listening sockets; each is None where the setup names no address for it."""

    #: The Unix socket of the API's gateway.
    gateway: Socket | None = None
    #: The Unix socket of the replicas' relays.
    replicas: Socket | None = None
    #: The TCP port.
    plain: Socket | None = None
    #: The TCP port that speaks TLS.
    secure: Socket | None = None
    #: The files of the Unix sockets: path, device and inode.
    files: list[tuple[Path, int, int]] = field(default_factory=list[tuple[Path, int, int]])

    @staticmethod
    def opened(setup: BucketSetup) -> Listeners:
        """Listen at the addresses of a setup. Raises OSError."""
        listeners = Listeners()
        try:
            if setup.host:
                listeners.plain = listen_tcp(setup.host, setup.port)
            if setup.host and setup.certificate:
                listeners.secure = _secure(setup)
            listeners.gateway = listeners._unix(setup.gateway)
            listeners.replicas = listeners._unix(setup.replicas)
        except OSError:
            listeners.close()
            raise
        for listener in listeners.sockets().values():
            listener.setblocking(False)
        return listeners

    @staticmethod
    def inherited(text: str) -> Listeners:
        """Returns the sockets inherited from the process that started this one; `text` is the result of
        `encode`."""
        handles = msgspec.json.decode(text, type=dict[str, int])
        for handle in handles.values():
            os.set_inheritable(handle, False)
        taken = {name: Socket(fileno=handle) for name, handle in handles.items()}
        return Listeners(
            taken.get("gateway"), taken.get("replicas"), taken.get("plain"), taken.get("secure")
        )

    def sockets(self) -> dict[str, Socket]:
        """The sockets that exist, by the names of their fields."""
        sockets = {
            "gateway": self.gateway,
            "replicas": self.replicas,
            "plain": self.plain,
            "secure": self.secure,
        }
        return {name: listener for name, listener in sockets.items() if listener is not None}

    @property
    def is_open(self) -> bool:
        """Whether any socket is open."""
        return any(listener.fileno() >= 0 for listener in self.sockets().values())

    def ports(self) -> tuple[int, int]:
        """The TCP ports without and with TLS; 0 = there is none."""
        plain, secure = (
            0 if listener is None else int(listener.getsockname()[1])
            for listener in (self.plain, self.secure)
        )
        return plain, secure

    def close(self) -> None:
        """Stop listening, and remove the socket files unless another process uses them by now. It can be
        called again."""
        for listener in self.sockets().values():
            listener.close()
        for path, device, inode in self.files:
            with contextlib.suppress(OSError):
                status = path.stat()
                if (status.st_dev, status.st_ino) == (device, inode):
                    path.unlink()
        self.files.clear()

    def _unix(self, path: str) -> Socket | None:
        if not path:
            return None
        listener = listen_unix(Path(path))
        made = Path(path).stat()
        self.files.append((Path(path), made.st_dev, made.st_ino))
        return listener


def encode(handles: dict[str, int]) -> str:
    """Returns the descriptors, by the names of the fields, as text for `Listeners.inherited`."""
    return msgspec.json.encode(handles).decode()


def _secure(setup: BucketSetup) -> socket.socket:
    """Listen with TLS, at any free port if the usual one is taken: nobody asks for it by number."""
    try:
        return listen_tcp(setup.host, setup.tls_port)
    except OSError:
        return listen_tcp(setup.host, 0)
