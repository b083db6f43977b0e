"""The HTTP client of the commands: requests to a running service with JSON, streams of JSON lines, objects.

Owns the texts by which a terminal tells refusals and failures. Knows no method of the APIs. Loads
`http.client` and `ssl` with the first connection: help needs neither.
"""

import http
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from urllib.parse import quote, urlencode, urlsplit

import click

from trainshed.cli.output import metered
from trainshed.cli.text.colours import cleaned, plain

if TYPE_CHECKING:
    import http.client
    import ssl

_CHUNK = 1 << 18
"""Bytes of an object that are sent or read at a time."""
PATIENCE = 60.0
"""Seconds that an answer may take; streams wait without a limit."""


class Unreachable(click.ClickException):
    """No service answers. Exit status 1, as for every error that is not one of usage."""


class Refused(click.ClickException):
    """The service answered with an error.

    `status`: the HTTP status, 0 = none; `violations`: (field, description) of each field that is wrong; the
    message lists them, one per line.
    """

    def __init__(
        self, status: int, message: str, violations: tuple[tuple[str, str], ...] = ()
    ) -> None:
        if violations:
            listed = "".join(f"\n  {field}: {text}" for field, text in violations)
            message = f"The service refused the request:{listed}"
        super().__init__(message)
        self.status = status
        self.violations = violations


class Client:
    """Requests to one address with one token. Every call blocks, and opens a connection of its own."""

    def __init__(
        self,
        address: str,
        token: str,
        advice: str,
        look: Callable[[], str] | None = None,
        *,
        ca: str | None = None,
        raw: bool = False,
    ) -> None:
        #: `http://host:port`, or with `https`.
        self.address = address.rstrip("/")
        self._token = token
        #: What errors advise if nothing answers there.
        self._advice = advice
        #: Returns the address that the service has now; raises Unreachable. None = it cannot be known.
        self._look = look
        #: A PEM file of authorities to trust for https, besides the system's; None = none.
        self._ca = ca
        #: True if texts in answers stay as they are; else they are made printable on a terminal.
        self.raw = raw

    def look_again(self) -> None:
        """Use the address that the service has now, if it can be known. Raises Unreachable while no service
        runs."""
        if self._look is not None:
            self.address = self._look().rstrip("/")

    def get(self, path: str, **query: str | int | Sequence[str] | None) -> Any:
        """Return the JSON that GET answers. A query parameter that is None is left out; one with several
        values is repeated.

        Raises Refused, Unreachable.
        """
        with self._open("GET", path, query=query) as answer:
            return answer.json()

    def pages(self, path: str, **query: str | int | Sequence[str] | None) -> Iterator[Any]:
        """Yield what GET answers, page by page. Raises Refused, Unreachable."""
        token = ""
        while token is not None:
            answer = self.get(path, **query, pageToken=token or None)
            token = answer.get("nextPageToken") or None
            yield answer

    def post(self, path: str, body: Mapping[str, Any], *, patience: float | None = PATIENCE) -> Any:
        """Return the JSON that POST answers. `patience`: seconds that it may take; None = unlimited. Raises
        Refused, Unreachable."""
        content = json.dumps(body).encode()
        with self._open("POST", path, content=content, patience=patience) as answer:
            return answer.json()

    def post_form(self, path: str, fields: Mapping[str, str]) -> Any:
        """Return the JSON that POST of a form answers. Raises Refused, Unreachable."""
        content, kind = urlencode(fields).encode(), "application/x-www-form-urlencoded"
        with self._open("POST", path, content=content, content_type=kind) as answer:
            return answer.json()

    def delete(self, path: str, **query: str | int | None) -> None:
        """Send DELETE. A query parameter that is None is left out. Raises Refused, Unreachable."""
        with self._open("DELETE", path, query=query) as answer:
            answer.read()

    def upload(self, bucket: str, name: str, content: bytes | BinaryIO, size: int) -> None:
        """Write an object of `size` bytes; a file is not loaded whole. Raises Refused, Unreachable."""
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        query = {"uploadType": "media", "name": name}
        kind = "application/octet-stream"
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        chunks = metered(name, size, iter(lambda: file.read(_CHUNK), b""))
        with self._open(
            "POST", path, query=query, content=chunks, content_type=kind, length=size
        ) as answer:
            answer.read()

    def opened(self, bucket: str, name: str) -> "Answer":
        """Return the answer with an object's content, which can be read in chunks. Raises Refused,
        Unreachable."""
        path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        return self._open("GET", path, query={"alt": "media"})

    def stream(self, path: str, **query: str | int | None) -> "Answer":
        """Return an answer of JSON lines to iterate over, which may take as long as a job does.

        Raises Refused, Unreachable. Iterating raises Unreachable if the answer breaks off.
        """
        return self._open("GET", path, query=query, patience=None)

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str] | None] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        content_type: str = "application/json",
        length: int | None = None,
        patience: float | None = PATIENCE,
    ) -> "Answer":
        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + ("?" + urlencode(parameters, doseq=True) if parameters else "")
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if content is not None:
            headers["Content-Type"] = content_type
        if length is not None:
            headers["Content-Length"] = str(length)
        connection = self._connection(patience)
        try:
            try:
                connection.request(method, target, body=content, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                if content is None or connection.sock is None:
                    raise
                # It may be refused already: then the answer says why.
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as failure:
            connection.close()
            raise self._unreachable(failure) from None
        answer = Answer(connection, response, self)
        if response.status >= 400:
            with answer:
                raise _refused(
                    response.status, answer.read(), None if self._token else self.address
                )
        return answer

    def _connection(self, patience: float | None) -> "http.client.HTTPConnection":
        import http.client

        try:
            parts = urlsplit(self.address)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        if parts.scheme not in ("http", "https") or not host:
            raise Unreachable(
                f"{self.address!r} is not the address of a service, such as http://127.0.0.1:8080."
            )
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=patience)
        return http.client.HTTPSConnection(host, port, timeout=patience, context=self.trust())

    def trust(self) -> "ssl.SSLContext":
        """Return the authorities to trust for https. Raises Unreachable if the file cannot be read."""
        import ssl

        trust = ssl.create_default_context()
        if self._ca:
            try:
                trust.load_verify_locations(self._ca)
            except (OSError, ssl.SSLError) as failure:
                raise Unreachable(
                    f"The file {self._ca} of whom to trust cannot be read: {failure}."
                ) from None
        return trust

    def _unreachable(self, failure: Exception) -> Unreachable:
        import ssl

        if isinstance(failure, ConnectionRefusedError):
            return Unreachable(f"Nothing answers at {self.address}. {self._advice}")
        if isinstance(failure, ssl.SSLCertVerificationError):
            return Unreachable(
                f"The certificate of {self.address} is not trusted: {failure.verify_message}. If it is of "
                "the service's own authority, take the file tls/ca.pem of its data directory and give it "
                "with --ca (or TRAINSHED_CA); if the name does not match, add it to the service's setting "
                "allowed_hosts."
            )
        if isinstance(failure, http.client.BadStatusLine) and not isinstance(
            failure, http.client.RemoteDisconnected
        ):
            # What it answered may be binary, so the message does not quote it.
            return Unreachable(
                f"{self.address} speaks no HTTP/1. If it is the gRPC port, take that of the REST API, which"
                " is 8080 unless another one was chosen: trainshed status says it."
            )
        cause = str(failure) or type(failure).__name__
        return Unreachable(f"The service at {self.address} did not answer: {cause}. {self._advice}")

    def broken(self, failure: Exception) -> Unreachable:
        """Return the error for an answer that broke off."""
        # Only the system's errors give a cause that helps a user; the library's say how far it had read.
        cause = (
            f" ({failure.strerror})" if isinstance(failure, OSError) and failure.strerror else ""
        )
        return Unreachable(
            f"The connection to the service at {self.address} broke off{cause}. {self._advice}"
        )


class Answer:
    """An answer that is being read, in a `with`. It can be read only once."""

    def __init__(
        self,
        connection: "http.client.HTTPConnection",
        response: "http.client.HTTPResponse",
        client: Client,
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
        """Return all of the answer. Raises Unreachable if it breaks off."""
        try:
            return self._response.read()
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.broken(failure) from None

    def json(self) -> Any:
        """Return all of the answer as JSON. Raises Unreachable if it breaks off, Refused if it is not
        JSON."""
        content = self.read()
        try:
            value = json.loads(content or b"{}")
            return value if self._client.raw else cleaned(value)
        except ValueError:
            raise Refused(
                self._response.status,
                f"{self._client.address} answered with something else than JSON: it may not be a"
                " Trainshed service. Check the address.",
            ) from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects, one per line, as they come. Raises Unreachable if the answer breaks off."""
        return chain.from_iterable(map(self.values, self.blocks()))

    def values(self, block: bytes) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a block. Raises Unreachable if it is none."""
        for line in filter(bytes.strip, block.splitlines()):
            try:
                value = json.loads(line)
            except ValueError as failure:
                raise self._client.broken(failure) from None
            yield value if self._client.raw else cleaned(value)

    def blocks(self) -> Iterator[bytes]:
        """Yield the answer in blocks of whole lines as they come, unchanged. Raises Unreachable if it breaks
        off."""
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
            # `read1` does not raise if the connection ends within the answer.
            if response.chunk_left is not None if response.chunked else response.length:
                raise http.client.IncompleteRead(rest)
            if rest:
                yield rest
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.broken(failure) from None

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the answer, an object of this name, in chunks. Raises Unreachable if it breaks off."""
        chunks = iter(lambda: self._response.read(_CHUNK), b"")
        try:
            yield from metered(name, self._response.length or 0, chunks)
            # `read` of a size does not raise if the connection ends within the answer.
            if self._response.length:
                raise http.client.IncompleteRead(b"")
        except (OSError, http.client.HTTPException) as failure:
            raise self._client.broken(failure) from None


def _refused(status: int, content: bytes, unknown_to: str | None) -> Refused | Unreachable:
    """Return the error for an answer of this status. `unknown_to`: the address, if no token was sent; None =
    a token was sent."""
    if status == http.HTTPStatus.UNAUTHORIZED and unknown_to:
        return Refused(
            status,
            f"No token was given for {unknown_to}. Sign in (trainshed login {unknown_to}), give --token or"
            " TRAINSHED_TOKEN, or leave out --url: the service of the data directory (~/.trainshed, --data)"
            " is found with its token.",
        )
    try:
        error = json.loads(content)["error"]
        message = plain(str(error["message"]))
    except (ValueError, KeyError, TypeError):
        text = f"The service answered with HTTP status {status} and no explanation."
        # So says a proxy whose service is away.
        return Unreachable(text) if status in (502, 503, 504) else Refused(status, text)
    if status == http.HTTPStatus.UNAUTHORIZED:
        message += (
            "\nThe token is not, or no longer, one of this service. Sign in again: trainshed login. If your"
            ' shell has an older one: eval "$(trainshed env --unset)"'
        )
    return Refused(status, message, tuple(_violations(error)))


def _violations(error: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for detail in cast(list[dict[str, Any]], error.get("details") or ()):
        for violation in cast(list[dict[str, Any]], detail.get("fieldViolations") or ()):
            field, text = violation.get("field", ""), violation.get("description", "")
            yield plain(str(field)), plain(str(text))
