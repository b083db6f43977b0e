"""Serves one client that connects to Google's hosts. Chooses the server for each request (`Request`): the
service's APIs, the bucket process, or the real host.

- Requests to APIs that the service implements go to the service.
- Requests with a token from Google about tables, secrets or accounts go to the real host.
- Other read requests go to the bucket process. If it does not have the bucket, the real host is tried too.
- Other write requests of the storage API go to the bucket process.
- All remaining write requests go to the real host, or to the bucket process if the host is unreachable.

Requests about local buckets, and tokens of the service, never leave the machine. Each client has one thread.
"""

import base64
import itertools
import re
import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_to_bytes

from trainshed.replica import protocol
from trainshed.replica.endpoint import google_hosts, messages
from trainshed.replica.system import unix_sockets

_SMALL = 64 << 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_BUCKETS, _SERVICE = b"", b"service"
"""Names of the two local servers, in place of a host's name: the bucket process and the service."""
_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class _Server:
    """A reusable connection to a server."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._stream = connection.makefile("rb")

    def answer(self) -> messages.Head:
        """Return the head of the next response. Raises OSError, ConnectionCut."""
        while True:
            try:
                head = messages.read_head(self._stream)
            except messages.NotHttp as error:
                raise ConnectionError(str(error)) from None
            if head is None:
                raise messages.ConnectionCut
            if not head.first.startswith(b"HTTP/1."):
                raise ConnectionError("no HTTP")
            if status_of(head)[:1] != b"1":
                return head

    def body(self, length: int) -> Iterator[bytes]:
        """Yield the parts of the response's body. Raises OSError, ConnectionCut."""
        try:
            yield from messages.read_body(self._stream, length)
        except messages.NotHttp as error:
            raise ConnectionError(str(error)) from None

    def close(self) -> None:
        self._stream.close()
        self.connection.close()

    def is_silent(self) -> bool:
        """Whether nothing has arrived since the last response. Only then can the connection be reused. A
        closed connection is not silent."""
        ready = select.poll()
        ready.register(self.connection, select.POLLIN)
        return not ready.poll(0)


def status_of(head: messages.Head) -> bytes:
    return b"".join(head.first.split()[1:2])


class Conversation:
    """Serves one client of the endpoint, after the TLS handshake with it."""

    def __init__(
        self, client: ssl.SSLSocket, network: protocol.Network, out: google_hosts.GoogleHosts | None
    ) -> None:
        """`out`: connects to the real hosts; None if the client has no access to them."""
        self._client = client
        self._stream = client.makefile("rb")
        self._network = network
        self._out = out
        #: Reusable connections by the name of a host or of a local server.
        self._servers: dict[bytes, _Server] = {}

    def run(self) -> None:
        """Serve requests until the client disconnects or a response ends the connection."""
        try:
            while self._exchange():
                pass
        except messages.NotHttp:
            self._respond(_BAD)
        except (OSError, messages.ConnectionCut):
            pass  # Closing the connection shows the client that the response is incomplete.
        finally:
            for host in list(self._servers):
                self._drop(host)
            self._stream.close()
            messages.hang_up(self._client)

    def _exchange(self) -> bool:
        """Serve one request; return whether the client may send another one."""
        head = messages.read_head(self._stream)
        if head is None:
            return False
        request = Request(head)
        if head.values(b"expect"):
            # The client waits for permission to send the body. Every server needs the body, so give
            # permission now.
            head.drop(b"expect")
            self._client.sendall(_CONTINUE)
        if request.is_read and not request.is_for_google:
            return self._read(request)
        parts: Iterable[bytes] = messages.read_body(self._stream, request.length)
        host, sent, goes_out = self._first_server(request), head.encode(), request.is_for_google
        if self._out and not request.is_storage and request.may_leave_machine():
            begun = list(_first_parts(parts))
            parts = itertools.chain(begun, parts)
            goes_out = not (has_token(b"".join(begun)) or self._is_local(request.bucket))
        if goes_out and self._open_connection(request.host):
            host, sent = request.host, request.encode_for_google()
        elif request.is_for_google:
            return self._respond(_UNAVAILABLE)
        server = self._connection_to(host)
        if server is None:
            return self._respond(_UNAVAILABLE)
        whole = _send(server, itertools.chain([sent], parts))
        return self._forward(host, server.answer(), request) and whole

    def _first_server(self, request: "Request") -> bytes:
        return _SERVICE if request.is_api and self._network.rest_socket else _BUCKETS

    def _read(self, request: "Request") -> bool:
        first = self._first_server(request)
        answer = self._try_request(first, request.head.encode())
        if answer is None:
            return self._respond(_UNAVAILABLE)
        length = _length(answer, request)
        if status_of(answer) != b"404" or not (0 <= length <= _SMALL and self._out):
            return self._forward(first, answer, request)
        if not request.may_leave_machine():
            return self._forward(first, answer, request)
        body = b"".join(self._servers[first].body(length))
        if not self._is_local(request.bucket):
            outside = self._try_request(request.host, request.encode_for_google())
            if outside is not None:
                return self._forward(request.host, outside, request)
        self._client.sendall(answer.encode() + body)
        return not _closes(answer, request)

    def _is_local(self, bucket: bytes) -> bool:
        if not bucket:
            return False
        question = b"GET /storage/v1/b/%s?fields=name HTTP/1.1\r\nHost: %s\r\n\r\n" % (bucket, HOSTS[0])
        answer = self._try_request(_BUCKETS, question)
        if answer is None:
            return True
        for _ in self._servers[_BUCKETS].body(answer.length(messages.UNTIL_END)):
            pass
        if answer.closes():
            self._drop(_BUCKETS)
        return status_of(answer) != b"404"

    def _try_request(self, host: bytes, request: bytes) -> messages.Head | None:
        """Send a request without a body; return the head of the response, or None if there is none."""
        kept = host in self._servers
        server = self._connection_to(host)
        if server is None:
            return None
        try:
            server.connection.sendall(request)
            return server.answer()
        except (OSError, messages.ConnectionCut, messages.NotHttp):
            self._drop(host)
            # If the request failed on a reused connection, the server may just have closed it: retry once on
            # a new one.
            return self._try_request(host, request) if kept else None

    def _open_connection(self, host: bytes) -> bool:
        """Open a new connection to a real host, for a request that must not be repeated. Return whether it is
        open."""
        self._drop(host)
        return self._connection_to(host) is not None

    def _connection_to(self, host: bytes) -> _Server | None:
        """Return the existing connection to a host, or a new one. Return None if the host is unreachable."""
        server = self._servers.get(host)
        if server is not None and server.is_silent():
            return server
        self._drop(host)
        if host == _BUCKETS:
            made = unix_sockets.connect_with_retries(
                self._network.storage_socket, protocol.preamble(self._network.identity, is_secure=True)
            )
        elif host == _SERVICE:
            made = unix_sockets.connect_with_retries(self._network.rest_socket)
        else:
            made = self._out.connect(host.decode("ascii")) if self._out else None
        if made is None:
            return None
        self._servers[host] = _Server(made)
        return self._servers[host]

    def _drop(self, host: bytes) -> None:
        server = self._servers.pop(host, None)
        if server is not None:
            server.close()

    def _forward(self, host: bytes, answer: messages.Head, request: "Request") -> bool:
        """Forward a response as it arrives. Return whether the client may send another request."""
        length = _length(answer, request)
        head = answer.encode()
        for part in self._servers[host].body(length):
            self._client.sendall(head + part)
            head = b""
        if head:
            self._client.sendall(head)
        if length == messages.UNTIL_END or answer.closes():
            self._drop(host)
        return length != messages.UNTIL_END and not _closes(answer, request)

    def _respond(self, answer: bytes) -> bool:
        """Send a response that the endpoint itself creates. Return False: the client may not send another
        request."""
        try:
            self._client.sendall(answer)
        except OSError:
            pass  # The client has disconnected and needs no response.
        return False


def _length(answer: messages.Head, request: "Request") -> int:
    if request.method == b"HEAD" or status_of(answer) in (b"204", b"304"):
        return 0
    return answer.length(messages.UNTIL_END)


def _closes(answer: messages.Head, request: "Request") -> bool:
    closes = answer.closes() or request.head.closes()
    return closes or request.head.first.endswith(b"/1.0") or answer.first.startswith(b"HTTP/1.0")


def _first_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of a body until they contain `_SMALL` bytes. A token in the body is within these parts,
    because forms with a token are short."""
    size = 0
    for part in parts:
        yield part
        size += len(part)
        if size >= _SMALL:
            return


def _send(server: _Server, parts: Iterable[bytes]) -> bool:
    """Send a request's body. Return False if the server stops accepting it. In this case, the server may have
    sent its response early, so the caller still reads a response."""
    for part in parts:
        try:
            server.connection.sendall(part)
        except OSError:
            return False
    return True


HOSTS = (b"storage.googleapis.com", b"www.googleapis.com")
JOB_TOKEN = b"tsj1."
"""Prefix of all tokens of jobs."""

_OTHER_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}\Z")
"""Format of a user's token. Google's tokens contain dots."""
_API = re.compile(rb"(?:(?:[a-z0-9-]+-)?(?:aiplatform|ml)|cloudresourcemanager|logging)\.googleapis\.com\Z")
_SHARED_WITH_GOOGLE = re.compile(rb"(?:bigquery|iamcredentials|secretmanager)\.googleapis\.com\Z")
_DISCOVERY = b"/discovery/"
_ISSUER = b"https://trainshed.local"
_SERVICE_ONLY = (b"with", b"computeMetadata", b"batch")
_STORAGE = re.compile(rb"/*(?:storage|(?:resumable/)?upload/storage|download/storage)/v1(?:/b/([^/]+)|/|\Z)")


def has_token(text: bytes) -> bool:
    """Whether a text contains a job's token. The token may be percent-encoded."""
    return JOB_TOKEN in unquote_to_bytes(text)


class Request:
    """A client's request with its length corrected, and the servers that may answer it. Raises NotHttp."""

    def __init__(self, head: messages.Head) -> None:
        words = head.first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise messages.NotHttp("the first line is not the request line of HTTP/1")
        self.head = head
        #: Length of the request's body in bytes, or a constant of `messages`.
        self.length = head.correct_length()
        self.method = words[0]
        # Clients may send an absolute URL: remove its scheme and host.
        self.path = re.sub(rb"^[a-zA-Z]+://[^/?]*", b"", words[1].partition(b"?")[0])
        self.host = b"".join(head.values(b"host")[:1]).lower().partition(b":")[0]
        #: Whether the request is a read, which may be repeated.
        self.is_read = self.method in (b"GET", b"HEAD") and not self.length
        # Older clients request the discovery documents of all APIs from one host.
        is_discovery = self.host == HOSTS[1] and self.path.startswith(_DISCOVERY)
        is_also_googles = bool(_SHARED_WITH_GOOGLE.match(self.host))
        #: Whether the service's APIs answer the request, unless the request `is_for_google`. If this is
        #: false, the bucket process or the real host answers.
        self.is_api = is_discovery or is_also_googles or bool(_API.match(self.host))
        #: Whether only the real host may answer: the request is about tables, secrets or accounts that are
        #: not stored in this service.
        self.is_for_google = is_also_googles and self._has_foreign_token()
        storage = _STORAGE.match(self.path)
        self.is_storage = bool(storage) or self.host != HOSTS[1]
        #: Name of the bucket in the path; b"" if the path has none.
        self.bucket = (storage.group(1) or b"") if storage else self._first()

    def may_leave_machine(self) -> bool:
        """Whether a host on the internet may answer the request."""
        if self.host not in HOSTS or self._first() in _SERVICE_ONLY:
            return False
        if not self.bucket and _STORAGE.match(self.path):
            return False
        return not has_token(self.head.first)

    def encode_for_google(self) -> bytes:
        """Return the request's head without the service's tokens, for the real host."""
        sent = messages.Head(self.head.first, [f for f in self.head.fields if JOB_TOKEN not in f])
        sent.drop(b"proxy-authorization")
        if any(map(is_ours, sent.values(b"authorization"))):
            sent.drop(b"authorization")
        return sent.encode()

    def _has_foreign_token(self) -> bool:
        tokens = self.head.values(b"authorization")
        return bool(tokens) and not any(map(is_ours, tokens)) and not has_token(self.head.first)

    def _first(self) -> bytes:
        return self.path.lstrip(b"/").partition(b"/")[0]


def is_ours(authorization: bytes) -> bool:
    """Whether the header contains a token of this service (of a job or a user), or text in such a format."""
    credentials = authorization.split()[-1:]
    if JOB_TOKEN in authorization or not credentials:
        return True
    if _OTHER_TOKEN.match(credentials[0]):
        return True
    return any(JOB_TOKEN in part or _ISSUER in part for part in map(_decode, credentials[0].split(b".")))


def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4), b"-_")
    except ValueError:
        return b""
