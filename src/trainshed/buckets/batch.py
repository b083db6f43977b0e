"""The batch address: many small requests in one ``multipart/mixed`` body, answered in order.

Only requests without content of their own belong in a batch, as at the public service.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from trainshed.buckets.calls import Call
from trainshed.buckets.errors import InvalidRequest

_MAX_CALLS = 1000
_MAX_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class InnerRequest:
    """One request of a batch; ``path`` is undecoded and has no host, header names are lower case."""

    method: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    content_id: str


Answerer = Callable[[InnerRequest], Awaitable[Response]]


async def answer_batch(call: Call, answer: Answerer) -> Response:
    """Answer each request of a batch in turn; raises ``InvalidRequest`` if it cannot be read."""
    body = b"".join([block async for block in call.blocks(limit=_MAX_BYTES)])
    kind = call.request.headers.get("content-type", "")
    requests = await call.run(parse_batch, kind, body)
    boundary = f"batch_{os.urandom(12).hex()}"
    parts: list[bytes] = []
    for inner in requests:
        response = await answer(inner)
        lines = [
            f"--{boundary}",
            "Content-Type: application/http",
            f"Content-ID: <response-{inner.content_id.strip('<>')}>",
            "",
            f"HTTP/1.1 {response.status_code} {_phrase(response.status_code)}",
            *(
                f"{name.decode('latin-1')}: {value.decode('latin-1')}"
                for name, value in response.raw_headers
            ),
            "",
            "",
        ]
        parts += ["\r\n".join(lines).encode("latin-1"), bytes(response.body), b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return Response(b"".join(parts), 200, media_type=f'multipart/mixed; boundary="{boundary}"')


def parse_batch(content_type: str, body: bytes) -> list[InnerRequest]:
    """Take a batch apart; raises ``InvalidRequest``."""
    # Only here: few clients send batches, and every idle bucket process would hold it.
    from email.parser import BytesParser
    from email.policy import HTTP

    header = f"Content-Type: {content_type}\r\nMIME-Version: 1.0\r\n\r\n".encode("latin-1")
    message = BytesParser(policy=HTTP).parsebytes(header + body)
    if not message.is_multipart():
        raise InvalidRequest("A batch is a multipart/mixed body with a boundary. Send one.")
    requests: list[InnerRequest] = []
    for number, part in enumerate(message.iter_parts()):
        payload = part.get_payload(decode=True)
        if not isinstance(payload, bytes):
            raise InvalidRequest("A part of the batch is not an application/http request.")
        requests.append(_request(payload, str(part.get("Content-ID") or number)))
    if not 1 <= len(requests) <= _MAX_CALLS:
        raise InvalidRequest(f"A batch has 1 to {_MAX_CALLS} requests. Split it.")
    return requests


def _request(payload: bytes, content_id: str) -> InnerRequest:
    head, _, body = payload.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = head.split(b"\n")
    words = lines[0].split(b" ")
    if len(words) < 2:
        raise InvalidRequest("A part of the batch has no request line. Send e.g. 'DELETE /path'.")
    target = words[1]
    if b"://" in target:
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    return InnerRequest(words[0].decode("latin-1"), path, query, headers, body, content_id)


def _phrase(status: int) -> str:
    return "OK" if status < 300 else "Error"
