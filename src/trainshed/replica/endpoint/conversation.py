"""One client that speaks to Google's hosts as it thinks, and who answers each of its requests: the service's
APIs, the bucket process, or the real host for what is none of ours.

What is about an API of the service is answered there (`Request` says whom one may concern), but for questions
about secrets with somebody else's token, which are Google's own to answer. For the rest the
bucket process is asked first. What it does not know, because no such bucket is here, goes on to the real host
if it only reads; what is no storage API at all goes there anyway. Where that host is out of reach the client
gets what the bucket process says. Nothing that is about a bucket of ours goes out, nor does a token of ours.
One thread per client. Runs on Python 3.6.
"""

import base64
import itertools
import re
import select
import socket
import ssl
import time
from urllib.parse import unquote_to_bytes

from trainshed.replica.endpoint import endings, messages, storage_failures, trainer_status
from trainshed.replica.system import unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator

    from trainshed.replica.endpoint import google_hosts

_RETRY_SECONDS = 10.0
_RETRY_PAUSE = 0.05
_KNOWN_SECONDS = 60.0
_SMALL = 64 << 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_STATUS_HOST = trainer_status.HOST.encode("ascii")
_BUCKETS, _SERVICE = b"", b"service"
"""Stand for our own two among the hosts that answer."""
_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


class Backend:
    """One of the service's processes, as a relay reaches it."""

    __slots__ = ("_known", "_preamble", "_target")

    def __init__(self, target: str, preamble: bytes = b"") -> None:
        #: Its Unix socket.
        self._target = target
        #: The line that connections to it begin with; b"" = none.
        self._preamble = preamble
        self._known: "dict[bytes, float]" = {}

    def connected(self) -> "socket.socket | None":
        """A connection to it; None: it has not come back for too long."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            made = unix_sockets.connected(self._target, self._preamble)
            if made is not None or time.monotonic() >= deadline:
                return made
            time.sleep(_RETRY_PAUSE)

    def has(self, bucket: bytes) -> bool:
        """Whether it was known a moment ago that the bucket is here."""
        return time.monotonic() < self._known.get(bucket, 0.0)

    def note(self, bucket: bytes) -> None:
        """The bucket is here."""
        self._known[bucket] = time.monotonic() + _KNOWN_SECONDS


class _Server:
    """A connection to one who answers."""

    __slots__ = ("connection", "incoming")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.incoming = messages.Incoming(connection.recv)

    def answer(self) -> messages.Head:
        """The head of its next answer. Raises OSError, ConnectionCut."""
        while True:
            try:
                head = self.incoming.head()
            except messages.NotHttp as error:
                raise ConnectionError(str(error)) from None
            if head is None:
                raise messages.ConnectionCut
            if not head.first.startswith(b"HTTP/1."):
                raise ConnectionError("no HTTP")
            if status_of(head)[:1] != b"1":
                return head

    def body(self, length: int) -> "Iterator[bytes]":
        """The parts of its answer's body. Raises OSError, ConnectionCut."""
        try:
            for part in self.incoming.body(length):
                yield part
        except messages.NotHttp as error:
            raise ConnectionError(str(error)) from None

    def is_silent(self) -> bool:
        """Nothing has come since the last answer, its end neither."""
        ready = select.poll()
        ready.register(self.connection, select.POLLIN)
        return not ready.poll(0)


def status_of(head: messages.Head) -> bytes:
    return b"".join(head.first.split()[1:2])


class Conversation:
    """What is said with one client, whose handshake is done."""

    __slots__ = (
        "_buckets",
        "_client",
        "_failing",
        "_incoming",
        "_out",
        "_servers",
        "_service",
        "_status",
    )

    def __init__(
        self,
        client: ssl.SSLSocket,
        buckets: Backend,
        out: "google_hosts.GoogleHosts | None",
        service: "Backend | None" = None,
        failing: "storage_failures.StorageFailures | None" = None,
        *,
        status: "trainer_status.TrainerStatus | None" = None,
    ) -> None:
        self._client = client
        #: Takes reports of how far the program is; None = nobody does.
        self._status = status
        #: Told of all answers but those of the APIs.
        self._failing = failing or storage_failures.StorageFailures()
        self._incoming = messages.Incoming(client.recv)
        #: The bucket process.
        self._buckets = buckets
        #: Whoever answers for the service's APIs; None = nobody does.
        self._service = service
        #: The way to the real hosts; None = there is none.
        self._out = out
        #: Kept connections, by host, or by which of our own processes.
        self._servers: "dict[bytes, _Server]" = {}

    def run(self) -> None:
        """Until the client hangs up, or has to."""
        try:
            while self._exchange():
                pass
        except messages.NotHttp:
            self._say(_BAD)
        except (OSError, messages.ConnectionCut):
            pass  # Half of an answer is of no use; that it was cut, the client shall see.
        finally:
            for host in list(self._servers):
                self._drop(host)
            endings.hang_up(self._client)

    def _exchange(self) -> bool:
        """One request and its answer; False: no other can follow."""
        head = self._incoming.head()
        if head is None:
            return False
        request = Request(head)
        if self._status is not None and request.host == _STATUS_HOST:
            return self._report(self._status, request)
        if head.values(b"expect"):
            # Whoever answers in the end, the body is taken.
            head.drop(b"expect")
            self._client.sendall(_CONTINUE)
        if request.is_for_google:
            return self._hand_on(request)
        if request.is_read:
            return self._read(request)
        parts: "Iterable[bytes]" = self._incoming.body(request.length)
        host, sent = self._first_asked(request), head.encode()
        if self._out and not request.is_storage and request.may_go_out():
            begun = list(_begun(parts))
            parts = itertools.chain(begun, parts)
            kept = has_token(b"".join(begun)) or self._is_here(request.bucket)
            if not kept and self._reached(request.host):
                host, sent = request.host, request.outwards()
        ours = host in (_BUCKETS, _SERVICE)
        server = self._asked(host) if ours else self._servers.get(host)
        if server is None:
            return self._say(_AWAY)
        whole = _send(server, itertools.chain([sent], parts))
        return self._pass_on(host, server.answer(), request) and whole

    def _report(self, status: "trainer_status.TrainerStatus", request: "Request") -> bool:
        """One report of how far the program is."""
        try:
            trainer_status.require_short(request.length, messages.CHUNKED)
        except trainer_status.Refusal as refusal:
            # What was not read stands in the way of another request.
            return self._say(trainer_status.refused(refusal))
        if request.head.values(b"expect"):
            self._client.sendall(_CONTINUE)
        body = b"".join(self._incoming.body(request.length))
        self._client.sendall(status.answer(request.head, body))
        return not (request.head.has_option(b"close") or request.head.first.endswith(b"/1.0"))

    def _hand_on(self, request: "Request") -> bool:
        """Have the real host answer, whatever it says."""
        parts = self._incoming.body(request.length)
        if not self._reached(request.host):
            return self._say(_AWAY)
        server = self._servers[request.host]
        whole = _send(server, itertools.chain([request.outwards()], parts))
        return self._pass_on(request.host, server.answer(), request) and whole

    def _first_asked(self, request: "Request") -> bytes:
        return _SERVICE if request.is_api and self._service is not None else _BUCKETS

    def _read(self, request: "Request") -> bool:
        first = self._first_asked(request)
        answer = self._answered(first, request.head.encode())
        if answer is None:
            return self._say(_AWAY)
        length = _length(answer, request)
        if status_of(answer) != b"404" or not (0 <= length <= _SMALL and self._out):
            return self._pass_on(first, answer, request)
        if not request.may_go_out() or self._buckets.has(request.bucket):
            return self._pass_on(first, answer, request)
        body = b"".join(self._servers[first].body(length))
        if not self._is_here(request.bucket):
            found = self._answered(request.host, request.outwards())
            if found is not None:
                return self._pass_on(request.host, found, request)
        self._answer(first, answer.encode() + body)
        return not _closes(answer, request)

    def _is_here(self, bucket: bytes) -> bool:
        """Whether a bucket is one of ours, as far as can be said."""
        if not bucket:
            return False
        if self._buckets.has(bucket):
            return True
        asked = b"GET /storage/v1/b/%s?fields=name HTTP/1.1\r\nHost: %s\r\n\r\n" % (
            bucket,
            HOSTS[0],
        )
        answer = self._answered(_BUCKETS, asked)
        if answer is None:
            return True
        for _ in self._servers[_BUCKETS].body(answer.length(messages.UNTIL_END)):
            pass
        if answer.has_option(b"close"):
            self._drop(_BUCKETS)
        if status_of(answer) == b"404":
            return False
        self._buckets.note(bucket)
        return True

    def _answered(self, host: bytes, request: bytes) -> "messages.Head | None":
        """The head of the answer to a request without a body; None: there is none."""
        kept = host in self._servers
        server = self._asked(host)
        if server is None:
            return None
        try:
            server.connection.sendall(request)
            return server.answer()
        except (OSError, messages.ConnectionCut, messages.NotHttp):
            self._drop(host)
            # One that was kept may have ended just now.
            return self._answered(host, request) if kept else None

    def _reached(self, host: bytes) -> bool:
        """Make a new connection to a real host, for a request that cannot be made twice."""
        self._drop(host)
        return self._asked(host) is not None

    def _asked(self, host: bytes) -> "_Server | None":
        """A connection to ask by: the kept one, or a new one."""
        server = self._servers.get(host)
        if server is not None and server.is_silent():
            return server
        self._drop(host)
        if host == _BUCKETS:
            made = self._buckets.connected()
            if made is None:
                self._failing.unreachable(_RETRY_SECONDS)
        elif host == _SERVICE:
            made = self._service.connected() if self._service else None
        else:
            made = self._out.connected(host.decode("ascii")) if self._out else None
        if made is None:
            return None
        self._servers[host] = _Server(made)
        return self._servers[host]

    def _drop(self, host: bytes) -> None:
        server = self._servers.pop(host, None)
        if server is not None:
            server.connection.close()

    def _pass_on(self, host: bytes, answer: messages.Head, request: "Request") -> bool:
        """Pass an answer on as it comes; returns whether another request may follow."""
        length = _length(answer, request)
        head = answer.encode()
        for part in self._servers[host].body(length):
            self._answer(host, head + part)
            head = b""
        if head:
            self._answer(host, head)
        if length == messages.UNTIL_END or answer.has_option(b"close"):
            self._drop(host)
        return length != messages.UNTIL_END and not _closes(answer, request)

    def _answer(self, host: bytes, data: bytes) -> None:
        """Pass on what `host` has said."""
        if host != _SERVICE:
            self._failing.answered(data)
        self._client.sendall(data)

    def _say(self, answer: bytes) -> bool:
        """Answer ourselves, for the last time."""
        try:
            self._client.sendall(answer)
        except OSError:
            pass  # It is gone.
        return False


def _length(answer: messages.Head, request: "Request") -> int:
    if request.method == b"HEAD" or status_of(answer) in (b"204", b"304"):
        return 0
    return answer.length(messages.UNTIL_END)


def _closes(answer: messages.Head, request: "Request") -> bool:
    said = answer.has_option(b"close") or request.head.has_option(b"close")
    return said or request.head.first.endswith(b"/1.0") or answer.first.startswith(b"HTTP/1.0")


def _begun(parts: "Iterable[bytes]") -> "Iterator[bytes]":
    """The first parts of a body: where a token would be, which is said in a short form."""
    size = 0
    for part in parts:
        yield part
        size += len(part)
        if size >= _SMALL:
            return


def _send(server: _Server, parts: "Iterable[bytes]") -> bool:
    """Send all of it; False: not all was taken, and perhaps there is an answer already."""
    for part in parts:
        try:
            server.connection.sendall(part)
        except OSError:
            return False
    return True


HOSTS = (b"storage.googleapis.com", b"www.googleapis.com")
JOB_TOKEN = b"tsj1."
"""What a token of a job begins with."""

_OTHER_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}\Z")
"""A token of a person; Google's have dots in them."""
_API = re.compile(
    rb"(?:(?:[a-z0-9-]+-)?(?:aiplatform|ml)|cloudresourcemanager|logging|secretmanager)\.googleapis\.com\Z"
)
_SECRETS = b"secretmanager.googleapis.com"
_DISCOVERY = b"/discovery/"
_ISSUER = b"https://trainshed.local"
_OURS_ALONE = (b"with", b"computeMetadata", b"batch")
_STORAGE = re.compile(
    rb"/*(?:storage|(?:resumable/)?upload/storage|download/storage)/v1(?:/b/([^/]+)|/|\Z)"
)


def has_token(text: bytes) -> bool:
    """Whether a token of a job is part of it, encoded as in addresses or not."""
    return JOB_TOKEN in unquote_to_bytes(text)


class Request:
    """A client's request, put right, and whom it may concern. Raises NotHttp."""

    __slots__ = (
        "bucket",
        "head",
        "host",
        "is_api",
        "is_for_google",
        "is_read",
        "is_storage",
        "length",
        "method",
        "path",
    )

    def __init__(self, head: messages.Head) -> None:
        words = head.first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise messages.NotHttp("a request of another kind")
        self.head = head
        #: Bytes of its body.
        self.length = head.put_right()
        self.method = words[0]
        # Clients may say the whole address.
        self.path = re.sub(rb"^[a-zA-Z]+://[^/?]*", b"", words[1].partition(b"?")[0])
        self.host = b"".join(head.values(b"host")[:1]).lower().partition(b":")[0]
        #: Whether it may be made twice.
        self.is_read = self.method in (b"GET", b"HEAD") and not self.length
        # Older clients ask one host what all the APIs are like.
        is_discovery = self.host == HOSTS[1] and self.path.startswith(_DISCOVERY)
        #: Whether the service's APIs answer it, not the buckets.
        self.is_api = is_discovery or bool(_API.match(self.host))
        #: Whether only the real host may answer: of secrets that are in nobody's keeping here.
        self.is_for_google = self.host == _SECRETS and self._is_from_elsewhere()
        storage = _STORAGE.match(self.path)
        self.is_storage = bool(storage) or self.host != HOSTS[1]
        #: As its path has it; b"" = it names none.
        self.bucket = (storage.group(1) or b"") if storage else self._first()

    def may_go_out(self) -> bool:
        """Whether it may concern somebody else than us at all."""
        if self.host not in HOSTS or self._first() in _OURS_ALONE:
            return False
        if not self.bucket and _STORAGE.match(self.path):
            return False
        return not has_token(self.head.first)

    def outwards(self) -> bytes:
        """Its head without any token of ours."""
        sent = messages.Head(self.head.first, [f for f in self.head.fields if JOB_TOKEN not in f])
        sent.drop(b"proxy-authorization")
        if any(map(is_ours, sent.values(b"authorization"))):
            sent.drop(b"authorization")
        return sent.encode()

    def _is_from_elsewhere(self) -> bool:
        """Whether it brings a token, and none of ours."""
        said = self.head.values(b"authorization")
        return bool(said) and not any(map(is_ours, said)) and not has_token(self.head.first)

    def _first(self) -> bytes:
        return self.path.lstrip(b"/").partition(b"/")[0]


def is_ours(authorization: bytes) -> bool:
    """Whether it holds a token of this service, of a job or of a person, or has the form of one."""
    said = authorization.split()[-1:]
    if JOB_TOKEN in authorization or not said:
        return True
    if _OTHER_TOKEN.match(said[0]):
        return True
    return any(JOB_TOKEN in part or _ISSUER in part for part in map(_decoded, said[0].split(b".")))


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4), b"-_")
    except ValueError:
        return b""
