"""The secure side of a replica's endpoint, for clients that call Google's storage hosts by name and cannot be told
another address: TLS ends here, by a certificate that the replica's programs are made to trust.

What goes through is what the client says, but for a contradiction in the framing of requests, which TensorFlow's client
puts there and servers refuse. Loaded by a relay process, and only if there is a certificate. Runs on Python 3.6.
"""

import json
import socket
import ssl

_LONGEST_HEAD = 128 << 10
"""Bytes after which what came is no request's head; it is passed on for the server to say so."""

_HEAD, _BODY, _CHUNK_SIZE, _TRAILER, _VERBATIM = range(5)


def preamble(line: bytes) -> bytes:
    """The line, a JSON object, with a word that the client spoke TLS: it must be told https:// addresses."""
    return json.dumps({**json.loads(line.decode("utf-8")), "scheme": "https"}).encode() + b"\n"


class Door:
    """Where clients come in over TLS."""

    __slots__ = ("_context",)

    def __init__(self, certificate: str) -> None:
        """`certificate`: a PEM file with the key and the chain. Without a good one everybody is turned away: the rest of
        the endpoint is of use all the same."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Others would try HTTP/2, which nobody speaks behind us.
        made.set_alpn_protocols(["http/1.1"])
        self._context: "ssl.SSLContext | None" = made
        try:
            made.load_cert_chain(certificate)
        except OSError:
            self._context = None

    def enter(self, connection: socket.socket) -> "Secured | None":
        """The connection, accepted and not blocking, as one over TLS; None, and it is closed, if that cannot be."""
        try:
            if self._context is not None:
                return Secured(connection, self._context)
        except OSError:
            pass  # The client is gone already.
        connection.close()
        return None


class Secured:
    """A connection of a client, to be used like a socket that does not block.

    It cannot be closed halfway: what a client sends after our last word is read and dropped, so that this word arrives.
    """

    __slots__ = ("_over", "_requests", "_socket")

    def __init__(self, connection: socket.socket, how: ssl.SSLContext) -> None:
        """The handshake is part of the first read. Raises OSError."""
        self._socket = how.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._requests = Requests()
        self._over = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        """What can be passed on; b"" at the end. Raises BlockingIOError as long as there is nothing, OSError.

        A record is decrypted as a whole and `size` must have room for one (16 kB): else a rest would wait in here unseen.
        """
        try:
            data = self._socket.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        if data:
            data = b"" if self._over else self._requests.feed(data)
            if not data:
                raise BlockingIOError
        return data

    def send(self, data: "bytes | memoryview") -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        """Say that nothing more comes."""
        try:
            self._socket.unwrap()
        except OSError:
            pass  # It waits for the client's own last word, which may take its time or never come.
        self._over = True
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class Requests:
    """A stream of HTTP/1.1 requests, of which each head is put right: a body's length is said in one way only.

    `Transfer-Encoding: identity` says nothing and is dropped, `Content-Length` beside `chunked` as well.
    """

    __slots__ = ("_held", "_left", "_next", "_state")

    def __init__(self) -> None:
        self._held = b""
        self._state = _HEAD
        self._left = 0
        self._next = _HEAD
        """Of a body or a chunk: the bytes still to come, and what comes behind them."""

    def feed(self, data: bytes) -> bytes:
        """What of it, and of what was held back, can go on."""
        self._held += data
        passed: "list[bytes]" = []
        while self._held:
            taken = self._take()
            if not taken:
                break
            passed.append(taken)
        return b"".join(passed)

    def _take(self) -> bytes:
        """The next part that can go on; b"" if there is none yet."""
        if self._state == _VERBATIM:
            return self._cut(len(self._held))
        if self._state == _BODY:
            part = self._cut(min(self._left, len(self._held)))
            self._left -= len(part)
            if not self._left:
                self._state = self._next
            return part
        return self._head() if self._state == _HEAD else self._line()

    def _cut(self, size: int) -> bytes:
        part, self._held = self._held[:size], self._held[size:]
        return part

    def _give_up(self) -> bytes:
        """It is no HTTP/1.1 that we know: the server is to say so."""
        self._state = _VERBATIM
        return self._take()

    def _expect(self, size: int, then: int) -> None:
        self._left, self._next = size, then
        self._state = _BODY if size else then

    def _head(self) -> bytes:
        end = self._held.find(b"\r\n\r\n") + 4
        if end < 4:
            return self._give_up() if len(self._held) > _LONGEST_HEAD else b""
        first, *fields = self._held[: end - 4].split(b"\r\n")
        lengths = [field for field in fields if _name(field) == b"content-length"]
        codings = [field for field in fields if _name(field) == b"transfer-encoding"]
        if any(b"chunked" in field.lower() for field in codings):
            dropped = lengths
            self._state = _CHUNK_SIZE
        else:
            dropped = codings
            length = lengths[0].partition(b":")[2].strip() if lengths else b"0"
            if not length.isdigit():
                return self._give_up()
            self._expect(int(length), _HEAD)
        self._cut(end)
        kept = [field for field in fields if field not in dropped]
        return b"\r\n".join([first, *kept, b"", b""])

    def _line(self) -> bytes:
        """The size of a chunk, or a line behind the last one."""
        end = self._held.find(b"\n") + 1
        if not end:
            return self._give_up() if len(self._held) > _LONGEST_HEAD else b""
        line = self._held[:end].strip()
        if self._state == _TRAILER:
            if not line:
                self._state = _HEAD
            return self._cut(end)
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            return self._give_up()
        if size:
            self._expect(size + 2, _CHUNK_SIZE)
        else:
            self._state = _TRAILER
        return self._cut(end)


def _name(field: bytes) -> bytes:
    return field.partition(b":")[0].strip().lower()
