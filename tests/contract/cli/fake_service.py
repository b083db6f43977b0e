"""A fake service: returns prepared replies on loopback and records all requests.

Its replies have the shapes of `trainshed.wire.trainshed_v1`.
"""

import json
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from click.testing import Result

TOKEN = "tok-en"


@dataclass
class SentRequest:
    """One request. `path` is decoded, and `query` contains single values."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str


@dataclass
class Stream:
    """NDJSON, one object at a time. If `gate` is set, the last object is sent after it opens."""

    objects: list[dict[str, Any]]
    gate: threading.Event | None = None
    broken: bool = False


Reply = dict[str, Any] | bytes | Stream
Invoke = Callable[..., Result]
"""Run a command line."""


@dataclass
class FakeService:
    """`replies` maps (method, decoded path) to a list of (status, reply). Each request consumes
    one; the last one is repeated. `cli` runs a command line that finds this service."""

    cli: Invoke
    replies: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    sent: list[SentRequest] = field(default_factory=list[SentRequest])
    address: str = ""

    def on(self, method: str, path: str, *replies: Reply, status: int = 200) -> None:
        self.replies[method, path] = [(status, reply) for reply in replies]

    def refuse(self, method: str, path: str, status: int, message: str, **violations: str) -> None:
        error: dict[str, Any] = {"code": status, "message": message, "status": "X"}
        if violations:
            listed = [{"field": key, "description": text} for key, text in violations.items()]
            error["details"] = [{"@type": "…BadRequest", "fieldViolations": listed}]
        self.on(method, path, {"error": error}, status=status)

    def bodies(self, method: str, path: str) -> list[bytes]:
        return [a.body for a in self.sent if (a.method, a.path) == (method, path)]

    def answer(self, sent: SentRequest) -> tuple[int, Reply]:
        self.sent.append(sent)
        if sent.path != "/healthz" and sent.authorization != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 401, "message": "Who are you?"}}
        queue = self.replies.get((sent.method, sent.path))
        if not queue and sent.path.endswith(("/curves", "/usage")):
            return 200, {}  # An empty list of resources.
        if not queue:
            return 404, {"error": {"code": 404, "message": f"{sent.path} was not found."}}
        return queue.pop(0) if len(queue) > 1 else queue[0]


class _Server(ThreadingHTTPServer):
    #: Length of the accept queue. The standard library's default of 5 sometimes rejects
    #: simultaneous connections, unlike a real service.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except for a client's disconnect: that could appear in the output of a later test."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(service: FakeService) -> Generator[FakeService]:
    """Serve on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            authorization = self.headers.get("authorization", "")
            status, reply = service.answer(
                SentRequest(self.command, unquote(parts.path), query, body, authorization)
            )
            self.send_response(status)
            if isinstance(reply, Stream):
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self._send_stream(reply)
                return
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET  # noqa: N815 - their names in the library

        def _send_stream(self, stream: Stream) -> None:
            for number, result in enumerate(stream.objects):
                if stream.gate and number == len(stream.objects) - 1:
                    stream.gate.wait(60)
                self._chunk(json.dumps(result).encode() + b"\n")
                self._chunk(b"\n")
            if stream.broken:
                self.close_connection = True
                return
            self._chunk(b"")

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
            return

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def replica(name: str, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "task": name,
        "state": state,
        "node": "node-0",
        "incarnation": 1,
        "startTime": "2026-11-20T06:00:01.000000Z" if state != "WAITING" else "",
        "exit": None,
    } | more


def exit_record(code: int = 0) -> dict[str, Any]:
    return {
        "exitCode": code,
        "signal": None,
        "outOfMemory": False,
        "startTime": "2026-11-20T06:00:01.000000Z",
        "endTime": "2026-11-20T06:00:04.500000Z",
        "logLines": 2,
    }


JOBS = "/trainshed/v1/jobs"


def job_page(*jobs: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Return a page of `JOBS`. `token` is the token of the next page."""
    return {"jobs": list(jobs), "nextPageToken": token}


def job(
    uid: str = "7", state: str = "RUNNING", replicas: Iterable[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    over = state in ("SUCCEEDED", "FAILED", "CANCELLED")
    result: dict[str, Any] = {
        "name": f"projects/p/locations/us-central1/customJobs/{uid}",
        "api": "vertex",
        "uid": uid,
        "project": "p",
        "jobId": uid,
        "displayName": "digits",
        "state": state,
        "createTime": "2026-11-20T06:00:00.000000Z",
        "startTime": "2026-11-20T06:00:01.000000Z",
        "endTime": "2026-11-20T06:00:05.000000Z" if over else "",
        "updateTime": "2026-11-20T06:00:01.000000Z",
        "labels": {},
        "attempt": 1,
        "rule": "",
        "waits": [],
        "replicas": list(replicas),
        "resource": {},
    }
    return result | more


def line(name: str, message: str, n: int = 0, severity: str = "INFO") -> dict[str, Any]:
    return {
        "at": f"2026-11-20T06:00:02.{n:09d}Z",
        "replica": name,
        "task": name,
        "attempt": 1,
        "severity": severity,
        "message": message,
        "n": n,
    }


def entry(kind: str, message: str, second: int = 0) -> dict[str, Any]:
    at = f"2026-11-20T06:00:{second:02d}.000000Z"
    return {"at": at, "kind": kind, "message": message, "details": {}}
