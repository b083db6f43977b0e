"""The HTTP client of the commands. It sends requests to a running service, and reads JSON, streams of JSON
lines, and objects. It also converts rejections and connection failures to error messages. It is independent
of the methods of the APIs.

`http.client` and `ssl` are imported with the first connection, because help texts need neither.
"""

import http
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from urllib.parse import quote, urlencode, urlsplit

import click

from trainshed.cli.output import show_progress
from trainshed.cli.text.colours import make_plain, plain

if TYPE_CHECKING:
    import http.client
    import ssl

_CHUNK = 1 << 18
"""Size of a block of an object's content, in bytes."""
REQUEST_TIMEOUT = 60.0
"""Maximum seconds to wait for a response. Streams have no limit."""


class Unreachable(click.ClickException):
    """The service does not respond. The exit status is 1, as for all errors except usage errors."""


class RequestError(click.ClickException):
    """The service returned an error.

    `status` is the HTTP status; 0 means that no response arrived. `violations` has (field, description) for
    each invalid field. The message lists the violations, one per line.
    """

    def __init__(self, status: int, message: str, violations: tuple[tuple[str, str], ...] = ()) -> None:
        if violations:
            listed = "".join(f"\n  {field}: {text}" for field, text in violations)
            message = f"The service rejected the request:{listed}"
        super().__init__(message)
        self.status = status
        self.violations = violations


class Client:
    """Sends requests to one address with one token. Every call blocks and opens its own connection."""

    def __init__(
        self,
        address: str,
        token: str,
        advice: str,
        find_address: Callable[[], str] | None = None,
        *,
        ca: str | None = None,
        raw: bool = False,
    ) -> None:
        #: `http://host:port`, or with `https`.
        self.address = address.rstrip("/")
        self._token = token
        #: The advice in the error if nothing responds at the address.
        self._advice = advice
        #: Returns the current address of the service, or raises Unreachable. None = the address is fixed.
        self._find_address = find_address
        #: A PEM file of authorities to trust for https in addition to the system's, or None.
        self._ca = ca
        #: Whether texts in responses remain unchanged. Otherwise they are made printable on a terminal.
        self.raw = raw

    def update_address(self) -> None:
        """Find the service again, and use its current address. Without the argument `find_address`, do
        nothing. Raises Unreachable if no service runs."""
        if self._find_address is not None:
            self.address = self._find_address().rstrip("/")

    def get(self, path: str, **query: str | int | Sequence[str] | None) -> Any:
        """Send a GET request and return the JSON of the response.

        A query parameter whose value is None is omitted. A parameter with several values is repeated. Raises
        RequestError, Unreachable.
        """
        with self._open("GET", path, query=query) as answer:
            return answer.json()

    def pages(self, path: str, **query: str | int | Sequence[str] | None) -> Iterator[Any]:
        """Yield the responses to GET requests, one for each page of a list. Raises RequestError,
        Unreachable."""
        token = ""
        while token is not None:
            answer = self.get(path, **query, pageToken=token or None)
            token = answer.get("nextPageToken") or None
            yield answer

    def post(self, path: str, body: Mapping[str, Any], *, timeout: float | None = REQUEST_TIMEOUT) -> Any:
        """Send a POST request and return the JSON of the response. `timeout`: maximum seconds to wait for it;
        None = unlimited. Raises RequestError, Unreachable."""
        content = json.dumps(body).encode()
        with self._open("POST", path, content=content, timeout=timeout) as answer:
            return answer.json()

    def post_form(self, path: str, fields: Mapping[str, str]) -> Any:
        """Send a form in a POST request and return the JSON of the response. Raises RequestError,
        Unreachable."""
        content, kind = urlencode(fields).encode(), "application/x-www-form-urlencoded"
        with self._open("POST", path, content=content, content_type=kind) as answer:
            return answer.json()

    def delete(self, path: str, **query: str | int | None) -> None:
        """Send a DELETE request. A query parameter whose value is None is omitted. Raises RequestError,
        Unreachable."""
        with self._open("DELETE", path, query=query) as answer:
            answer.read()

    def upload(self, bucket: str, name: str, content: bytes | BinaryIO, size: int) -> None:
        """Write an object of `size` bytes in chunks. Raises RequestError, Unreachable."""
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        query = {"uploadType": "media", "name": name}
        kind = "application/octet-stream"
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        chunks = show_progress(name, size, iter(lambda: file.read(_CHUNK), b""))
        with self._open("POST", path, query=query, content=chunks, content_type=kind, length=size) as answer:
            answer.read()

    def open_object(self, bucket: str, name: str) -> "Response":
        """Return a response with an object's content, to read in chunks. Raises RequestError, Unreachable."""
        path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        return self._open("GET", path, query={"alt": "media"})

    def stream(self, path: str, **query: str | int | None) -> "Response":
        """Return a response of JSON lines. It may last as long as a job.

        Raises RequestError, Unreachable. Iterating over the response raises Unreachable if the connection
        breaks.
        """
        return self._open("GET", path, query=query, timeout=None)

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str] | None] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        content_type: str = "application/json",
        length: int | None = None,
        timeout: float | None = REQUEST_TIMEOUT,
    ) -> "Response":
        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + ("?" + urlencode(parameters, doseq=True) if parameters else "")
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if content is not None:
            headers["Content-Type"] = content_type
        if length is not None:
            headers["Content-Length"] = str(length)
        connection = self._connection(timeout)
        try:
            try:
                connection.request(method, target, body=content, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                if content is None or connection.sock is None:
                    raise
                # Ignore the error and read the response. The service may have rejected the request before it
                # received the whole body. Then the response contains the reason.
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as failure:
            connection.close()
            raise self._unreachable(failure) from None
        answer = Response(connection, response, self)
        if response.status >= 400:
            with answer:
                raise _response_error(response.status, answer.read(), None if self._token else self.address)
        return answer

    def _connection(self, timeout: float | None) -> "http.client.HTTPConnection":
        import http.client

        try:
            parts = urlsplit(self.address)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        if parts.scheme not in ("http", "https") or not host:
            raise Unreachable(
                f"{self.address!r} is not the address of a service. Use one such as http://127.0.0.1:8080."
            )
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self.trust())

    def trust(self) -> "ssl.SSLContext":
        """Return the TLS settings for https. Raises Unreachable if the file of authorities cannot be read."""
        import ssl

        trust = ssl.create_default_context()
        if self._ca:
            try:
                trust.load_verify_locations(self._ca)
            except (OSError, ssl.SSLError) as failure:
                raise Unreachable(
                    f"The file of trusted authorities {self._ca} cannot be read: {failure}. Use another "
                    "one with --ca."
                ) from None
        return trust

    def _unreachable(self, failure: Exception) -> Unreachable:
        import ssl

        if isinstance(failure, ConnectionRefusedError):
            return Unreachable(f"Nothing answers at {self.address}. {self._advice}")
        if isinstance(failure, ssl.SSLCertVerificationError):
            return Unreachable(
                f"The certificate of {self.address} is not trusted: {failure.verify_message}. If the "
                "service's own authority issued it, copy tls/ca.pem from the service's data directory and "
                "specify the copy with --ca (or TRAINSHED_CA). If the name does not match, add it to the "
                "service's setting allowed_hosts."
            )
        if isinstance(failure, http.client.BadStatusLine) and not isinstance(
            failure, http.client.RemoteDisconnected
        ):
            # The message does not quote the response, which may be binary.
            return Unreachable(
                f"{self.address} does not support HTTP/1. If this is the gRPC port, use the REST port, "
                "which is 8080 by default. trainshed status shows it."
            )
        cause = str(failure) or type(failure).__name__
        return Unreachable(f"The service at {self.address} did not answer: {cause}. {self._advice}")

    def connection_error(self, failure: Exception) -> Unreachable:
        """Return the error for a connection that broke during a response."""
        # Only errors of the operating system contain a helpful cause. Errors of the HTTP library contain only
        # a position.
        cause = f" ({failure.strerror})" if isinstance(failure, OSError) and failure.strerror else ""
        return Unreachable(
            f"The connection to the service at {self.address} broke off{cause}. {self._advice}"
        )


class Response:
    """An HTTP response. Use it in a `with` block, and read it only once."""

    def __init__(
        self, connection: "http.client.HTTPConnection", response: "http.client.HTTPResponse", client: Client
    ) -> None:
        self._connection = connection
        self._response = response
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def read(self) -> bytes:
        """Return the whole content. Raises Unreachable if the connection breaks."""
        try:
            return self._response.read()
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.connection_error(failure) from None

    def json(self) -> Any:
        """Return the whole content as JSON. Raises Unreachable if the connection breaks, RequestError if the
        content is not JSON."""
        content = self.read()
        try:
            value = json.loads(content or b"{}")
            return value if self._client.raw else make_plain(value)
        except ValueError:
            raise RequestError(
                self._response.status,
                f"The response from {self._client.address} is not JSON, so there may be no Trainshed service "
                "at this address. Check the address.",
            ) from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects, one per line, as they arrive. Raises Unreachable if the connection
        breaks."""
        return chain.from_iterable(map(self.values, self.blocks()))

    def values(self, block: bytes) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a block. Raises Unreachable if a line is not JSON."""
        for line in filter(bytes.strip, block.splitlines()):
            try:
                value = json.loads(line)
            except ValueError as failure:
                raise self._client.connection_error(failure) from None
            yield value if self._client.raw else make_plain(value)

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of whole lines as they arrive, unchanged. Raises Unreachable if the
        connection breaks."""
        rest = b""
        response = self._response
        try:
            while data := response.read1(1 << 18):
                end = data.rfind(b"\n") + 1
                if end:
                    yield rest + data[:end]
                    rest = data[end:]
                else:
                    rest += data
            # Check for missing content, because `read1` raises no error if the connection ends before the end
            # of the response.
            if response.chunk_left is not None if response.chunked else response.length:
                raise http.client.IncompleteRead(rest)
            if rest:
                yield rest
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.connection_error(failure) from None

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content, an object called `name`, in chunks. Raises Unreachable if the connection
        breaks."""
        chunks = iter(lambda: self._response.read(_CHUNK), b"")
        try:
            yield from show_progress(name, self._response.length or 0, chunks)
            # Check for missing content, because `read(size)` raises no error if the connection ends before
            # the end of the response.
            if self._response.length:
                raise http.client.IncompleteRead(b"")
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.connection_error(failure) from None


def _response_error(status: int, content: bytes, unknown_to: str | None) -> RequestError | Unreachable:
    """Return the error for a response with this status and content. `unknown_to`: if the request had no
    token, the service's address for the error message; otherwise None."""
    if status == http.HTTPStatus.UNAUTHORIZED and unknown_to:
        return RequestError(
            status,
            f"The request to {unknown_to} had no token. Sign in with trainshed login {unknown_to}, or set "
            "--token or TRAINSHED_TOKEN. For a service on this machine, omit --url: its data directory "
            "(~/.trainshed, --data) contains its token.",
        )
    try:
        error = json.loads(content)["error"]
        message = plain(str(error["message"]))
    except (ValueError, KeyError, TypeError):
        text = f"The service returned HTTP status {status} without an error message."
        # A proxy returns these statuses while the service behind the proxy is down.
        return Unreachable(text) if status in (502, 503, 504) else RequestError(status, text)
    if status == http.HTTPStatus.UNAUTHORIZED:
        message += (
            "\nThe token is not valid at this service, or no longer. Sign in again: trainshed login. If "
            'your shell has an older token: eval "$(trainshed env --unset)"'
        )
    return RequestError(status, message, tuple(_violations(error)))


def _violations(error: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for detail in cast(list[dict[str, Any]], error.get("details") or ()):
        for violation in cast(list[dict[str, Any]], detail.get("fieldViolations") or ()):
            field, text = violation.get("field", ""), violation.get("description", "")
            yield plain(str(field)), plain(str(text))
