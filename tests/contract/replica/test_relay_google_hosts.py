"""Requests that are not for the service go to Google's real hosts, which are loopback servers here
(spec/program#storage)."""

import base64
import gzip
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.contract.buckets_service import Service
from tests.contract.replica.conftest import WAIT_TIMEOUT
from tests.contract.replica.relays import running
from trainshed.access.job_tokens import KEY_FILE, JobClaims, JobTokens
from trainshed.buckets.setup import BucketRules
from trainshed.replica.endpoint import conversation
from trainshed.serve import certificates

STORAGE, OTHER = "storage.googleapis.com", "www.googleapis.com"
OTHER_APIS = tuple(f"{api}.googleapis.com" for api in ("bigquery", "iamcredentials", "secretmanager"))
HOSTS = (STORAGE, OTHER, *OTHER_APIS)
_PROGRAM = {"job_uid": 1, "replica": "workerpool0-0", "project": "p1", "service_account": "a@p1"}
IDENTITY = json.dumps(_PROGRAM).encode()
DATA = bytes(range(256)) * 8192


class GoogleHosts:
    """Google's hosts: they have one public bucket and record all requests."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        requests = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                requests.append((self.command, self.path, headers, body))
                known = self.path.startswith(("/public", "/oauth2/"))
                content = DATA if known else b"really not here"
                self.send_response(200 if known else 404)
                if "chunked" in self.path:
                    self.send_header("Transfer-Encoding", "chunked")
                    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
                else:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def __getattr__(self, name: str) -> object:
                if name.startswith("do_"):
                    return self.do
                raise AttributeError(name)

            def log_request(self, code: object = 0, size: object = 0) -> None:
                pass  # The default would write to standard error.

        files = certificates.prepare_interception(directory, time.time(), {})
        self.trust = files.trust
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.certificate)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Network:
    """A bucket process behind a TLS relay, and the real hosts."""

    def __init__(self, directory: Path, files: certificates.Interception) -> None:
        self.service = Service(directory, BucketRules("p1"))
        self.files = files
        self.real = GoogleHosts(directory / "google")
        tokens = JobTokens.open(directory / KEY_FILE, time.time_ns)
        self.claims = JobClaims(1, 1, "workerpool0-0", "p1", "a@p1")
        self.token = tokens.mint(self.claims)[0]
        self.identity_token = tokens.identity_token(self.claims, "https://elsewhere")

    @contextmanager
    def relay(self, port: int = 0, trust: Path | None = None, proxy: str = "") -> Generator["Api"]:
        ports: dict[str, int] = dict.fromkeys(HOSTS, port or self.real.port)
        with running(
            str(self.service.replicas),
            self.files.certificate,
            identity=IDENTITY,
            hosts=ports,
            trust=trust or self.real.trust,
            proxy=proxy,
        ) as relaying:
            yield Api(relaying.secure_port, self.files.trust)


class Connection(http.client.HTTPConnection):
    """A connection to one of Google's hosts, from the view of a program."""

    def __init__(self, host: str, port: int, trust: ssl.SSLContext) -> None:
        super().__init__(host, timeout=WAIT_TIMEOUT)
        self._there = ("127.0.0.1", port)
        self._trust = trust

    def connect(self) -> None:
        raw = socket.create_connection(self._there, timeout=WAIT_TIMEOUT)
        self.sock = self._trust.wrap_socket(raw, server_hostname=self.host)


class Api:
    """Sends requests to all hosts, with one connection per host."""

    def __init__(self, port: int, trust: Path) -> None:
        context = ssl.create_default_context(cafile=trust)
        self._connections = {host: Connection(host, port, context) for host in HOSTS}

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] = b"",
        *,
        host: str = STORAGE,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        connection = self._connections[host]
        chunked = not isinstance(body, bytes)
        connection.request(method, path, body or None, headers or {}, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def disconnect(self) -> None:
        """Close all connections. The next request to each host opens a new one."""
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, files: certificates.Interception) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("service"), files)
    yield made
    made.real.stop()
    made.service.stop()


@pytest.fixture(scope="module")
def shared_api(network: Network) -> Iterator[Api]:
    """A client of one relay, with an uploaded object."""
    with network.relay() as api:
        name = json.dumps({"name": "local"}).encode()
        assert api.ask("POST", "/storage/v1/b?project=p1", name)[0] == 200
        path = "/upload/storage/v1/b/local/o?uploadType=media&name=x"
        assert api.ask("POST", path, b"content")[0] == 200
        assert network.real.asked == []
        yield api


@pytest.fixture
def api(network: Network, shared_api: Api) -> Iterator[Api]:
    network.real.asked.clear()
    yield shared_api
    shared_api.disconnect()


@pytest.mark.parametrize("path", ["/public/a.npz", "/public/chunked", "/public?prefix=a"])
def test_public_google_bucket_is_read_from_google(network: Network, api: Api, path: str) -> None:
    for _ in range(2):
        assert api.ask("GET", path) == (200, DATA)
        assert api.ask("HEAD", path) == (200, b"")
        assert api.ask("GET", "/local/x") == (200, b"content")
    assert [sent[:2] for sent in network.real.asked] == [("GET", path), ("HEAD", path)] * 2


def test_requests_to_other_google_apis_are_forwarded(network: Network, api: Api) -> None:
    """Requests are sent exactly once, with any body."""
    assert api.ask("GET", "/oauth2/v1/certs", host=OTHER) == (200, DATA)
    assert api.ask("POST", "/oauth2/v4/token", b"grant=x", host=OTHER) == (200, DATA)
    large = gzip.compress(DATA) * 8
    assert api.ask("PUT", "/oauth2/x", large, host=OTHER) == (200, DATA)
    assert [sent[3] for sent in network.real.asked] == [b"", b"grant=x", large]


@pytest.mark.parametrize(
    ("method", "path", "host"),
    [
        ("GET", "/local/absent", STORAGE),
        ("HEAD", "/local/absent", STORAGE),
        ("GET", "/local?uploads", STORAGE),
        ("GET", "/storage/v1/b/local/o/absent", OTHER),
        ("GET", "/download/storage/v1/b/local/o/absent?alt=media", STORAGE),
        ("GET", "/local/absent", OTHER),
        ("POST", "/local/absent", OTHER),
        ("PUT", "/public/written", STORAGE),
        ("POST", "/upload/storage/v1/b/public/o?uploadType=media&name=x", OTHER),
        ("DELETE", "/storage/v1/b/public/o/x", OTHER),
        ("GET", "/storage/v1/nothing", STORAGE),
        ("GET", "/computeMetadata/v1/absent", OTHER),
        ("GET", f"/with/{'k' * 32}/public/x", STORAGE),
    ],
)
def test_requests_for_resources_of_the_service_are_not_forwarded_to_google(
    network: Network, api: Api, method: str, path: str, host: str
) -> None:
    """These requests concern a bucket of the service, or write, or are understood only by the service."""
    for _ in range(2):
        status, _ = api.ask(method, path, b"data" if method in ("PUT", "POST") else b"", host=host)
        assert 400 <= status < 500
    assert network.real.asked == []


def test_tokens_of_the_service_are_not_forwarded_to_google(network: Network, api: Api) -> None:
    basic = base64.b64encode(b"oauth2accesstoken:" + network.token.encode()).decode()
    for authorization in (
        f"Bearer {network.token}",
        f"bearer  {network.token}",
        f"Bearer {network.identity_token}",
        f"Bearer {network.service.token}",
        f"Basic {basic}",
    ):
        assert api.ask("GET", "/public/x", headers={"Authorization": authorization})[0] == 200, authorization
        assert "authorization" not in network.real.asked[-1][2], authorization
    assert api.ask("GET", "/public/x", headers={"X-Token": network.token})[0] == 200
    assert "x-token" not in network.real.asked[-1][2]
    assert network.token.encode().startswith(conversation.JOB_TOKEN)


def test_tokeninfo_request_for_a_token_of_the_service_is_not_forwarded_to_google(
    network: Network, api: Api
) -> None:
    encoded = network.token.replace(".", "%2E")
    for token in (network.token, encoded):
        path = f"/oauth2/v3/tokeninfo?access_token={token}"
        assert api.ask("GET", path, host=OTHER)[0] == 404
        body = f"access_token={token}".encode()
        assert api.ask("POST", "/oauth2/v3/tokeninfo", body, host=OTHER)[0] == 400
        assert api.ask("POST", "/oauth2/v3/tokeninfo", iter([body]), host=OTHER)[0] in (200, 400)
    assert not any(network.token in path for _, path, _, _ in network.real.asked)


@pytest.mark.parametrize("way", ["closed", "distrusted", "proxy"])
def test_response_of_the_service_is_returned_when_google_is_unreachable(network: Network, way: str) -> None:
    network.real.asked.clear()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        ways = {
            "closed": network.relay(port),
            "distrusted": network.relay(trust=network.files.trust),
            "proxy": network.relay(proxy=f"http://127.0.0.1:{port}"),
        }
        with ways[way] as api:
            for _ in range(2):
                status, body = api.ask("GET", "/public/x")
                assert status == 404
                assert b"<Code>NoSuchBucket</Code>" in body
                assert api.ask("HEAD", "/public/x") == (404, b"")
                assert api.ask("POST", "/oauth2/v4/token", b"grant=x", host=OTHER)[0] == 400
    assert network.real.asked == []


def test_requests_to_google_can_use_a_proxy(network: Network) -> None:
    heard: list[str] = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(WAIT_TIMEOUT)

    def forward() -> None:
        client = server.accept()[0]
        heard.append(client.recv(1000).decode())
        with client, socket.create_connection(("127.0.0.1", network.real.port)) as there:
            client.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
            back = threading.Thread(target=copy, args=(there, client))
            back.start()
            copy(client, there)
            back.join(WAIT_TIMEOUT)

    def copy(source: socket.socket, target: socket.socket) -> None:
        # Either side may close first.
        with suppress(OSError):
            while block := source.recv(1 << 16):
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)

    proxy = threading.Thread(target=forward)
    proxy.start()
    port = server.getsockname()[1]
    with network.relay(proxy=f"http://me:p%40ss@127.0.0.1:{port}") as api:
        assert api.ask("GET", "/public/x") == (200, DATA)
    proxy.join(WAIT_TIMEOUT)
    server.close()
    lines = heard[0].split("\r\n")
    version = "1.1" if sys.version_info >= (3, 12) else "1.0"
    assert lines[0] == f"CONNECT 127.0.0.1:{network.real.port} HTTP/{version}"
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:p@ss').decode()}" in lines


@pytest.mark.parametrize("host", OTHER_APIS)
def test_google_tokens_are_forwarded_with_their_requests(network: Network, api: Api, host: str) -> None:
    path = "/v1/projects/p/secrets/s/versions/latest:access"
    theirs = {"Authorization": "Bearer ya29.a0AfH6SMBx.theirs"}
    assert api.ask("GET", path, host=host, headers=theirs) == (404, b"really not here")
    written = api.ask("POST", f"{path}:x", b"{}", host=host, headers=theirs)
    assert written == (404, b"really not here")
    requests = network.real.asked
    assert [(method, body) for method, _, _, body in requests] == [("GET", b""), ("POST", b"{}")]
    assert {headers["authorization"] for _, _, headers, _ in requests} == {theirs["Authorization"]}
    for ours in ({"Authorization": f"Bearer {network.token}"}, {}):
        assert api.ask("GET", path, host=host, headers=ours)[1] != b"really not here"
    assert len(network.real.asked) == 2, "a token of ours has not gone out"
