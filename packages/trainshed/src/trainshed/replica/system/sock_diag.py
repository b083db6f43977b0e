"""Asks the kernel for the machine's sockets (sock_diag(7)). A query for sockets in one state skips all
others, while /proc prints each."""

import os
import socket
import struct
from collections.abc import Iterator

_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_DONE, _ERROR = 3, 2
_DUMP = 0x301
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER = 256 << 10
_LONGEST_WAIT = 1.0
"""Seconds to wait for the kernel's answer, which is there once the request is sent."""


def listen(groups: int = 0) -> socket.socket:
    """Open a socket for requests, which also receives notices of these `groups`. Raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
    try:
        opened.bind((0, groups))
        opened.settimeout(_LONGEST_WAIT)
    except OSError:
        opened.close()
        raise
    return opened


def receive(requests: socket.socket) -> bytes:
    """Receive some messages. Raises OSError."""
    return requests.recv(_BUFFER)


def answers(requests: socket.socket, request: bytes) -> Iterator[bytes]:
    """Yield the messages that answer a request for all sockets of a family, some at a time. Raises
    OSError."""
    requests.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
    is_done = False
    while not is_done:
        data = receive(requests)
        is_done = _ends(data)
        yield data


def bodies(data: bytes) -> Iterator[bytes]:
    """Yield the body of each message that describes a socket: one that exists, or, in a notice, one that was
    destroyed."""
    for kind, begin, end in _messages(data):
        if kind in (_BY_FAMILY, _DESTROY):
            yield data[begin:end]


def attribute(body: bytes, at: int, wanted: int) -> bytes:
    """Return an attribute of a body, whose attributes begin at `at`; b"" = it has none such."""
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return b""


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, begin, end) of each message's body."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind = _HEADER.unpack_from(data, at)[:2]
        if length < _HEADER.size:
            return
        yield kind, at + _HEADER.size, min(at + length, len(data))
        at += (length + 3) & ~3


def _ends(data: bytes) -> bool:
    """Whether the answer is complete. Raises OSError if it is a refusal."""
    for kind, begin, _ in _messages(data):
        if kind == _ERROR:
            number = -struct.unpack_from("=i", data, begin)[0]
            raise OSError(number, "sock_diag: %s" % os.strerror(number))
        if kind == _DONE:
            return True
    return False
