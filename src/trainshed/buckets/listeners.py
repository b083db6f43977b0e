"""The listening sockets of a bucket process.

They are opened by whoever starts it, and held beside it: who calls while there is no bucket process waits for
the next one, and addresses stay what they are.
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
    """Each is None where the setup names no address for it."""

    #: The Unix socket of the API's gateway.
    gateway: Socket | None = None
    #: The Unix socket of the relays of replicas.
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
        """Those of the process that has started this one, by what `encode` made."""
        handles = msgspec.json.decode(text, type=dict[str, int])
        for handle in handles.values():
            os.set_inheritable(handle, False)
        taken = {name: Socket(fileno=handle) for name, handle in handles.items()}
        return Listeners(
            taken.get("gateway"), taken.get("replicas"), taken.get("plain"), taken.get("secure")
        )

    def sockets(self) -> dict[str, Socket]:
        """Those that there are, by the names of their fields."""
        named = {
            "gateway": self.gateway,
            "replicas": self.replicas,
            "plain": self.plain,
            "secure": self.secure,
        }
        return {name: listener for name, listener in named.items() if listener is not None}

    @property
    def is_open(self) -> bool:
        """Whether somebody can call."""
        return any(listener.fileno() >= 0 for listener in self.sockets().values())

    def ports(self) -> tuple[int, int]:
        """Of TCP, without and with TLS; 0 = there is none."""
        plain, secure = (
            0 if listener is None else int(listener.getsockname()[1])
            for listener in (self.plain, self.secure)
        )
        return plain, secure

    def close(self) -> None:
        """Listen no longer, and remove the files, unless somebody else listens there by now. May be called
        again."""
        for listener in self.sockets().values():
            listener.close()
        for path, device, inode in self.files:
            with contextlib.suppress(OSError):
                found = path.stat()
                if (found.st_dev, found.st_ino) == (device, inode):
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
    """The numbers of handles by the names of fields, for `Listeners.inherited`."""
    return msgspec.json.encode(handles).decode()


def _secure(setup: BucketSetup) -> socket.socket:
    """At another port, if somebody took the usual one: nobody asks for it by number."""
    try:
        return listen_tcp(setup.host, setup.tls_port)
    except OSError:
        return listen_tcp(setup.host, 0)
