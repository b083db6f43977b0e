"""Connections to reducers: each attempt in a short-lived thread, so that one that does not answer delays no
other."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import Callable, NamedTuple, Optional, Sequence, Tuple, Union

from trainshed_reduction import proof, wire
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.settings import Settings
from trainshed_reduction.variables import CA, CERT, CERT_FILE
from trainshed_reduction.wire import Accept, Hello, Kind, Start

Address = Tuple[str, int]

_SILENCE = 10.0
"""Seconds: a reducer that waits for other ranks says so every second."""


class Target(NamedTuple):
    """Process `process` of the reducer whose first process listens at `first`. `guess`: where it was seen
    last."""

    first: Address
    process: int
    guess: Address


class Admitted(NamedTuple):
    """The reducer has let this worker in. `own`: this worker's address, as the connection has it."""

    accept: Accept
    address: Address
    own: str


class Waiting(NamedTuple):
    """What the reducer waits for, in its words."""

    text: str


class Started(NamedTuple):
    """All ranks are there. Whoever takes it closes the connection."""

    connection: socket.socket
    start: Start


class Failed(NamedTuple):
    """`final`: trying again would be of no use."""

    cause: str
    final: bool


News = Union[Admitted, Waiting, Started, Failed]


class Attempt:
    """Connects once, says HELLO and waits until all ranks have. `tell` is called in the attempt's thread,
    last with Started or Failed, and not at all after `stop`."""

    def __init__(
        self,
        target: Target,
        token: bytes,
        hello: Hello,
        tls: Optional[ssl.SSLContext],
        tell: "Callable[[Attempt, News], None]",
    ) -> None:
        self._target = target
        self._token = token
        self._hello = hello
        self._tls = tls
        self._tell = tell
        self._stopped = False
        self._connection: Optional[socket.socket] = None
        name = "reduction-connect-{}:{}".format(*target.guess)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It says nothing any more and soon ends."""
        self._stopped = True
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _run(self) -> None:
        try:
            start = self._connect()
        except proof.Refused as error:
            self._close(Failed(str(error), True))
        except socket.timeout:
            self._close(Failed("it does not answer", False))
        except (OSError, wire.Malformed, ValueError) as error:
            self._close(Failed(str(error) or type(error).__name__, False))
        else:
            connection = self._connection
            assert connection is not None
            if self._stopped:
                connection.close()
            else:
                self._tell(self, Started(connection, start))

    def _close(self, failed: Failed) -> None:
        if self._connection is not None:
            self._connection.close()
        if not self._stopped:
            self._tell(self, failed)

    def _connect(self) -> Start:
        """Raises Refused, OSError, Malformed."""
        accept, address = self._reach()
        connection = self._connection
        assert connection is not None
        _keep_alive(connection)
        if not self._stopped:
            self._tell(self, Admitted(accept, address, connection.getsockname()[0]))
        while True:
            header, payload = proof.read_frame(
                connection, time.monotonic() + _SILENCE, wire.MAX_TEXT
            )
            if header.kind is Kind.START:
                return wire.unpack_start(payload)
            text = payload.decode(errors="replace")
            if header.kind is not Kind.STATUS:
                raise proof.Refused(text or header.kind.name)
            if not self._stopped:
                self._tell(self, Waiting(text))

    def _reach(self) -> "Tuple[Accept, Address]":
        """Where a process listens may have changed; the first one of its host knows. Raises as
        `proof.connect`."""
        first, process, address = self._target
        if process:
            try:
                accept = self._greet(address)
            except proof.Refused:
                raise
            except (OSError, wire.Malformed):
                accept = None
            if accept is not None and accept.ports[process : process + 1] == (address[1],):
                return accept, address
            if self._connection is not None:
                self._connection.close()
            ports = ask_ports(first, self._token, self._tls)
            if process >= len(ports):
                raise wire.Malformed(
                    "{}:{} has {} processes now; process {} is gone".format(
                        *first, len(ports), process
                    )
                )
            address = (first[0], ports[process])
        return self._greet(address), address

    def _greet(self, address: Address) -> Accept:
        self._connection, accept = proof.connect(address, self._token, self._hello, tls=self._tls)
        return accept


def ask_ports(first: Address, token: bytes, tls: Optional[ssl.SSLContext]) -> "Sequence[int]":
    """Of all reducers at this host, by a group of one that has no other use. Raises as `proof.connect`."""
    hello = Hello(b"", b"", os.urandom(wire.GROUP), 1, 0, 0, 1, 0)
    connection, accept = proof.connect(first, token, hello, tls=tls)
    try:
        connection.sendall(proof.frame(Kind.BYE))
    finally:
        connection.close()
    return accept.ports


def trust(settings: Settings) -> Optional[ssl.SSLContext]:
    """None: plain TCP. Raises ReductionFailed."""
    if not settings.is_secured:
        return None
    try:
        return proof.worker_tls(settings.ca_file, settings.ca)
    except OSError as error:
        raise ReductionFailed(
            "the certificate authority of the reducers in {} cannot be used: {}".format(
                settings.ca_file or CA, error
            )
        ) from error


def nothing_to_show(settings: Settings, tls: Optional[ssl.SSLContext]) -> str:
    """Why the other workers could not believe a reducer of this worker's own, if they believe whom it does
    itself; "" if they could, or all is plain TCP."""
    if tls is None:
        return ""
    if not settings.cert_file and not settings.cert:
        return "no certificate for a reducer of its own ({})".format(CERT_FILE)
    try:
        shown = proof.reducer_tls(
            settings.cert_file, settings.key_file, cert=settings.cert, key=settings.key
        )
        fault = proof.distrust(tls, shown)
    except OSError as error:
        fault = str(error)
    where = settings.cert_file or CERT
    return fault and "a certificate in {} that cannot be used: {}".format(where, fault)


def _keep_alive(connection: socket.socket) -> None:
    """A host that vanished without a word is noticed within about half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 20000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
