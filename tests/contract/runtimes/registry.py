"""An image registry on loopback: the pull side of the OCI distribution API, with typical registry problems.

It serves HTTP without TLS, so `registries.conf` must declare it insecure for podman.
"""

import base64
import gzip
import hashlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ports import free_port

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURE = "amd64"


class Registry:
    """`requests` contains each request as "METHOD PATH STATUS". `login` is the required NAME:PASSWORD, or
    None for anonymous access. A closed registry refuses connections, and opens on the same port again."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.login: str | None = None
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, bytes] = {}
        self._server: _Server | None = None
        self._port = free_port()
        self.open()

    @property
    def host(self) -> str:
        """The registry part of image names, HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    def open(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _Answer)
        self._server.registry = self
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def put(self, name: str, layers: Sequence[bytes], **config: Any) -> None:
        """Store an image NAME:TAG of these tar archives with its configuration (`Entrypoint`, `Cmd`, …)."""
        packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
        headers = {
            "architecture": _ARCHITECTURE,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._keep(CONFIG, json.dumps(headers).encode()),
            "layers": [self._keep(LAYER, layer) for layer in packed],
        }
        content = json.dumps(manifest).encode()
        repository, _, tag = name.rpartition(":")
        digest = _digest(content)
        for reference in (tag, digest):
            self._manifests[f"/v2/{repository}/manifests/{reference}"] = content

    def digest(self, name: str) -> str:
        """Return the current digest of NAME:TAG."""
        repository, _, tag = name.rpartition(":")
        return _digest(self._manifests[f"/v2/{repository}/manifests/{tag}"])

    def manifests(self) -> int:
        """Return the number of requests that resolved a name."""
        return sum(1 for line in self.requests if "/manifests/" in line)

    def answer(self, request: "_Answer") -> None:
        """Return the response to one request."""
        path = request.path
        credentials = request.headers.get("Authorization", "").removeprefix("Basic ")
        if self.login and credentials != base64.b64encode(self.login.encode()).decode():
            request.reply(401, *_error("UNAUTHORIZED", "authentication required"))
        elif path in ("/v2", "/v2/"):
            request.reply(200, "application/json", b"{}")
        elif path in self._manifests:
            request.reply(200, MANIFEST, self._manifests[path])
        elif (digest := path.rpartition("/blobs/")[2]) in self._blobs:
            request.reply(200, "application/octet-stream", self._blobs[digest])
        elif "/manifests/" in path:
            request.reply(404, *_error("MANIFEST_UNKNOWN", "manifest unknown"))
        else:
            request.reply(404, *_error("BLOB_UNKNOWN", "blob unknown"))

    def _keep(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = _digest(content)
        self._blobs[digest] = content
        return {"mediaType": kind, "digest": digest, "size": len(content)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    registry: Registry


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] -- it is of no other kind

    def do_GET(self) -> None:
        self.server.registry.answer(self)

    def do_HEAD(self) -> None:
        self.server.registry.answer(self)

    def reply(self, status: int, kind: str, content: bytes) -> None:
        self.server.registry.requests.append(f"{self.command} {self.path} {status}")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="team"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the library's
        """Log nothing."""


def insecure(registry: Registry, place: Path) -> Path:
    """Write the `registries.conf` that permits podman to use this registry."""
    place.write_text(f'[[registry]]\nlocation = "{registry.host}"\ninsecure = true\n')
    return place


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _error(code: str, message: str) -> tuple[str, bytes]:
    body = {"errors": [{"code": code, "message": message, "detail": None}]}
    return "application/json", json.dumps(body).encode()
