"""The handshake, in which each side proves to the other that it knows the job's token.

Both sides use the functions that create and check messages. Only workers use `connect`, `greet` and
`read_frame`, which block. A proof covers the nonces of both sides and all messages sent so far. This prevents
replays, including replays to another group.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from typing import Optional, Tuple, Type, TypeVar

from trainshed_reduction import wire
from trainshed_reduction.wire import Accept, Header, Hello, Kind

HANDSHAKE_SECONDS = 5.0
"""Maximum seconds of the handshake, from the connection to ACCEPT, on either side."""
_VERSION = wire.VERSION.to_bytes(2, "little")
"""First bytes of a signed payload: the version of the protocol. Their format is the same in all versions."""
_BODY = len(_VERSION) + hashlib.sha256().digest_size
"""Offset of the message in a signed payload. The version and the proof precede it."""
Signed = TypeVar("Signed", Hello, Accept)
WRONG_TOKEN = "the token does not belong to this job"
"""The error for a peer that does not know the token. Such a peer receives no other message."""


class WorkerRejected(ConnectionError):
    """The reducer rejects this worker. The caller must not try again, unless the message recommends it."""


class Untrusted(ConnectionError):
    """The peer does not know the job's token, so it is no reducer of this job."""


def nonce() -> bytes:
    return os.urandom(wire.NONCE)


def group_digest(name: str) -> bytes:
    """Return the digest of a group's name. HELLO contains the digest."""
    return hashlib.blake2b(name.encode(), digest_size=wire.GROUP).digest()


def sign(token: bytes, message: "Hello | Accept", before: bytes) -> bytes:
    """Return the payload of a HELLO or ACCEPT: version, proof, nonce and message. `before`: all earlier
    payloads of the handshake. The proof covers these payloads, so the proof is valid only on this connection.
    """
    body = nonce() + wire.pack_message(message)
    return _VERSION + _mac(token, type(message).__name__.encode() + before + body) + body


def read_signed(token: bytes, kind: "Type[Signed]", payload: bytes, before: bytes) -> Optional[Signed]:
    """Return the message in the payload of a HELLO or ACCEPT; None if the sender does not know the token.
    `before`: as in `sign`. Raises Malformed if the payload is invalid or belongs to another version of the
    protocol."""
    version = int.from_bytes(payload[: len(_VERSION)], "little")
    if version != wire.VERSION:
        raise wire.Malformed(
            f"worker and reducer use different versions of the protocol ({version} and {wire.VERSION}). "
            "Install the same trainshed_reduction on both"
        )
    proof, body = payload[len(_VERSION) : _BODY], payload[_BODY:]
    if not hmac.compare_digest(proof, _mac(token, kind.__name__.encode() + before + body)):
        return None
    return wire.unpack_message(kind, body[wire.NONCE :])


def _mac(token: bytes, text: bytes) -> bytes:
    if not token:
        raise ValueError("the job's token must not be empty")
    return hmac.new(token, text, hashlib.sha256).digest()


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Return a frame that contains no chunk, ready to send."""
    return wire.pack(Header(kind, nbytes=len(payload))) + payload


def text_frame(kind: Kind, text: str) -> bytes:
    """Return a STATUS or ERROR frame with a text. A text that is too long is truncated."""
    payload = text.encode()[: wire.MAX_TEXT]
    return frame(kind, payload.decode(errors="ignore").encode())


def connect(
    address: "Tuple[str, int]", token: bytes, hello: Hello, seconds: float = HANDSHAKE_SECONDS
) -> "Tuple[socket.socket, Accept]":
    """Connect to a reducer, perform the handshake, and return the connection and the reducer's ACCEPT. No
    data after ACCEPT is read. The timeout of the connection is then the rest of `seconds`.

    Raises WorkerRejected if the reducer rejects this worker, Untrusted if the peer does not know the token,
    wire.Malformed if a message is invalid, and OSError (including TimeoutError) if the connection fails.
    """
    deadline = time.monotonic() + seconds
    connection = socket.create_connection(address, _remaining(deadline))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, greet(connection, token, hello, deadline)
    except BaseException:
        connection.close()
        raise


def greet(connection: socket.socket, token: bytes, hello: Hello, deadline: float) -> Accept:
    """Perform the worker's side of the handshake. `deadline`: time of the monotonic clock. Raises the same
    exceptions as `connect`."""
    challenge = _expect(connection, Kind.CHALLENGE, deadline)
    if len(challenge) != wire.NONCE:
        raise wire.Malformed(
            f"the challenge of the reducer has {len(challenge)} bytes instead of {wire.NONCE}"
        )
    greeting = sign(token, hello, challenge)
    connection.settimeout(_remaining(deadline))
    connection.sendall(frame(Kind.HELLO, greeting))
    answer = _expect(connection, Kind.ACCEPT, deadline)
    accept = read_signed(token, Accept, answer, challenge + greeting)
    if accept is None:
        raise Untrusted("the peer does not know the job's token, so it is not a reducer of this job")
    return accept


def _expect(connection: socket.socket, kind: Kind, deadline: float) -> bytes:
    header, payload = read_frame(connection, deadline)
    if header.kind is Kind.ERROR:
        raise WorkerRejected(payload.decode(errors="replace"))
    if header.kind is not kind:
        raise wire.Malformed(f"a frame of kind {header.kind.name} arrived instead of {kind.name}")
    return payload


def read_frame(
    connection: socket.socket, deadline: float, limit: int = wire.MAX_TEXT
) -> "Tuple[Header, bytes]":
    """Read exactly one frame. `deadline`: time of the monotonic clock. `limit`: maximum bytes of the payload.
    Raises wire.Malformed if the frame is invalid, and OSError: socket.timeout at the deadline,
    ConnectionResetError if the connection ends."""
    header = wire.unpack(_read(connection, wire.HEADER.size, deadline))
    if header.nbytes > limit:
        raise wire.Malformed(f"a {header.kind.name} frame has {header.nbytes} bytes; the limit is {limit}")
    return header, bytes(_read(connection, header.nbytes, deadline))


def _read(connection: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        connection.settimeout(_remaining(deadline))
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("the other side closed the connection")
        rest = rest[count:]
    return data


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        # Since Python 3.10, socket.timeout is TimeoutError. In earlier versions, it is a different subclass
        # of OSError.
        raise socket.timeout("timed out")
    return left
