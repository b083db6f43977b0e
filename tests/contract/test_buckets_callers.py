"""Callers and their permissions at each entry of the bucket process, with real clients."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.buckets_service import MIB, Service, send_request, serving
from tests.contract.ordinary_user import as_root_only, run_as_nobody
from tests.people import add_user
from trainshed.access import account_tokens
from trainshed.access.account_tokens import is_json_web_token
from trainshed.access.book import AccessBook, ServiceAccount
from trainshed.access.job_tokens import KEY_FILE, JobClaims, JobTokens
from trainshed.access.permissions import OWNER, ROLES
from trainshed.access.principals import Bearer, Principal, Rights
from trainshed.buckets import authentication
from trainshed.buckets.callers import Caller, Reach, encode_caller, storage_key
from trainshed.buckets.disk.catalog import BucketCatalog
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import Unauthenticated
from trainshed.buckets.setup import BucketRules, BucketTable
from trainshed.cli.environment import credentials_document
from trainshed.engines.port import EngineUnavailable
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve import clock
from trainshed.serve.bucket_adapters import BucketAdapter
from trainshed_console.pages import buckets

RULES = BucketRules("own", (BucketTable("shared-1", shared=True),))
FORGED = Caller("owner@test", {"": Reach.ADMIN})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A bucket process with a bucket in each of two projects, and a shared one. Each contains the object
    `x`."""
    with Service(tmp_path, RULES) as made:
        for bucket, project in (("bucket-p", "p"), ("bucket-q", "q"), ("shared-1", "own")):
            made.call("POST", f"/storage/v1/b?project={project}", {"name": bucket})
            made.put(bucket, "x", b"old")
        yield made


class Relay(http.client.HTTPConnection):
    """A connection of a replica's relay: first the preamble, then the program's data."""

    def __init__(self, service: Service, preamble: bytes) -> None:
        super().__init__("h", timeout=60)
        self._path = service.replicas
        self._preamble = preamble

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        with reachable(str(self._path)) as short:
            self.sock.connect(short)
        self.sock.sendall(self._preamble)


def program(project: str, account: str = "sa@p") -> bytes:
    claims = {"job_uid": "7", "project": project, "replica": "workerpool0-0", "attempt": 1}
    return json.dumps({**claims, "service_account": account}).encode() + b"\n"


def ask(
    service: Service,
    who: bytes,
    method: str,
    target: str,
    body: Any = b"",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    connection = Relay(service, who)
    try:
        with contextlib.suppress(BrokenPipeError):  # The service may close the connection early.
            connection.request(method, target, content, headers or {})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(text) if text.startswith(b"{") else text


def test_program_can_use_only_buckets_of_its_project_and_shared_buckets(service: Service) -> None:
    """spec/program#isolation: no method of the API gives access to other projects' buckets."""
    mine = program("p")
    assert ask(service, mine, "GET", "/storage/v1/b/bucket-p/o/x?alt=media") == (200, b"old")
    assert ask(service, mine, "GET", "/storage/v1/b/shared-1/o/x?alt=media") == (200, b"old")
    closed = [
        ("GET", "/storage/v1/b/bucket-q"),
        ("GET", "/storage/v1/b/bucket-q/o"),
        ("GET", "/storage/v1/b/bucket-q/o/x?alt=media"),
        ("GET", "/download/storage/v1/b/bucket-q/o/x?alt=media"),
        ("GET", "/bucket-q/x"),
        ("DELETE", "/storage/v1/b/bucket-q/o/x"),
        ("DELETE", "/storage/v1/b/bucket-q"),
        ("POST", "/upload/storage/v1/b/bucket-q/o?uploadType=media&name=y"),
        ("POST", "/upload/storage/v1/b/bucket-q/o?uploadType=resumable&name=y"),
        ("POST", "/storage/v1/b/bucket-p/o/x/rewriteTo/b/bucket-q/o/y"),
        ("POST", "/storage/v1/b/bucket-q/o/x/rewriteTo/b/bucket-p/o/y"),
        ("PUT", "/storage/v1/b/bucket-q/iam"),
        # All programs may use a shared bucket's objects, but not change the bucket or its policy.
        ("DELETE", "/storage/v1/b/shared-1"),
        ("PUT", "/storage/v1/b/shared-1/iam"),
        ("POST", "/storage/v1/b?project=q"),
        ("GET", "/storage/v1/b?project=q"),
    ]
    answers = [ask(service, mine, method, target, b"{}") for method, target in closed]
    assert [status for status, _ in answers] == [403] * len(closed)
    assert "belongs to another project than the job" in answers[0][1]["error"]["message"]
    for way in ("/storage/v1/b/bucket-q/o/{}", "/bucket-q/{}", "/storage/v1/b/bucket-q/o/{}/acl"):
        # The existence of a bucket name is public, since it cannot be created twice. The names of objects are
        # not.
        there, missing = (ask(service, mine, "GET", way.format(name)) for name in ("x", "no"))
        assert (there[0], missing) == (403, there)
    listed = ask(service, mine, "GET", "/storage/v1/b")[1]["items"]
    assert [bucket["name"] for bucket in listed] == ["bucket-p", "shared-1"]
    assert ask(service, mine, "POST", "/storage/v1/b", {"name": "made-1"})[0] == 200
    assert ask(service, program("q"), "GET", "/storage/v1/b/made-1")[0] == 403
    taken = ask(service, mine, "POST", "/storage/v1/b", {"name": "bucket-q"})
    assert (taken[0], "not available" in taken[1]["error"]["message"]) == (409, True)
    target = "/storage/v1/b/shared-1/iam/testPermissions?permissions=storage.buckets.delete"
    held = ask(service, mine, "GET", f"{target}&permissions=storage.objects.get")[1]
    assert held["permissions"] == ["storage.objects.get"]
    assert service.call("GET", "/storage/v1/b/bucket-q/o/x?alt=media") == (200, b"old")


def test_batch_requests_are_authorized_individually(service: Service) -> None:
    inner = (
        "--b\r\nContent-Type: application/http\r\n\r\n"
        "DELETE /storage/v1/b/bucket-q/o/x HTTP/1.1\r\n"
        f"X-Trainshed-Identity: {encode_caller(FORGED).decode()}\r\n"
        f"Authorization: Bearer {service.token}\r\n\r\n"
        "--b\r\nContent-Type: application/http\r\n\r\n"
        "GET /v1/projects/q/jobs HTTP/1.1\r\n\r\n--b--"
    )
    sort = {"Content-Type": "multipart/mixed; boundary=b"}
    status, text = ask(service, program("p"), "POST", "/batch/storage/v1", inner.encode(), sort)
    assert (status, b"HTTP/1.1 403" in text, b"separately" in text) == (200, True, True)
    assert service.call("GET", "/storage/v1/b/bucket-q/o/x?alt=media")[0] == 200


def test_program_cannot_impersonate_another_caller(service: Service) -> None:
    """A second preamble, an identity header, another token, or a key does not change the caller of the first
    preamble."""
    forged = {
        "X-Trainshed-Identity": encode_caller(FORGED).decode(),
        "X-Forwarded-Proto": "https",
        **service.bearer,
    }
    mine = program("p")
    assert ask(service, mine, "GET", "/storage/v1/b/bucket-q", headers=forged)[0] == 403
    keyed = service.address().removeprefix(f"http://127.0.0.1:{service.port}")
    assert ask(service, mine, "GET", f"{keyed}/storage/v1/b/bucket-q")[0] == 403
    assert ask(service, mine + program("q"), "GET", "/storage/v1/b/bucket-q")[0] == 400


def test_relay_connection_without_a_valid_identity_line_is_rejected(service: Service) -> None:
    """The relay of an older version gets a clear error."""
    odd = (b'{"project": ""}', b'{"project": 7}', b"{}", b"[]", b"\xff{}", b"GET / HTTP/1.1")
    for first in (b"", *(line + b"\n" for line in odd), b"x" * 5000 + b"\n", b"x" * 5000):
        connection = Relay(service, first)
        connection.connect()
        with contextlib.suppress(BrokenPipeError):  # The service may close the connection early.
            connection.sock.sendall(b"GET /storage/v1/b HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = b""
        # Data after the preamble is not read, so the connection ends with a reset.
        with contextlib.suppress(ConnectionResetError):
            while block := connection.sock.recv(MIB):
                answer += block
        connection.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"older version" in answer


def test_identity_line_may_arrive_in_pieces_and_applies_to_the_whole_connection(service: Service) -> None:
    connection = Relay(service, b"")
    connection.connect()
    who = program("p")
    for piece in (who[:10], who[10:-1], b"\nGET /storage/v1/b/bucket-p/o/x?alt=media HTT"):
        connection.sock.sendall(piece)
    connection.sock.sendall(b"P/1.1\r\nHost: h\r\n\r\n")
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    assert (answer.status, answer.read()) == (200, b"old")
    for bucket, status in (("bucket-q", 403), ("bucket-p", 200)):
        connection.request("GET", f"/storage/v1/b/{bucket}")
        following = connection.getresponse()
        following.read()
        assert following.status == status
    connection.close()


def test_visible_buckets_of_a_project_change_when_buckets_or_their_policies_change(tmp_path: Path) -> None:
    """spec/program#storage: `/gcs/BUCKET` for all current buckets."""
    store = ObjectStore(tmp_path / "buckets", rules=RULES)
    store.catalog.ensure("bucket-1", project="p")
    catalog = BucketCatalog(tmp_path / "buckets", time.time_ns, RULES)

    def visible_names(project: str) -> list[str]:
        return [name for name, _ in store.catalog.visible_buckets(project)]

    assert (visible_names("p"), visible_names("q")) == (["bucket-1"], [])
    catalog.create("bucket-2", project="p")
    assert visible_names("p") == ["bucket-1", "bucket-2"]
    everybody = {"role": "roles/storage.objectAdmin", "members": ["allAuthenticatedUsers"]}
    catalog.set_policy("bucket-2", [everybody])
    assert visible_names("q") == ["bucket-2"]
    catalog.delete("bucket-1")
    assert visible_names("p") == ["bucket-2"]


def test_job_waits_for_a_missing_bucket_directory(tmp_path: Path) -> None:
    """Such a job failed with an internal error after three attempts. tests/sim/test_delays.py covers the
    waiting."""
    store = ObjectStore(tmp_path / "buckets", rules=RULES)
    store.catalog.ensure("bucket-1", project="p")
    (tmp_path / "buckets").rename(tmp_path / "elsewhere")
    with pytest.raises(EngineUnavailable, match="restore it"):
        BucketAdapter(store).visible_buckets("p")
    (tmp_path / "elsewhere").rename(tmp_path / "buckets")
    assert [name for name, _ in BucketAdapter(store).visible_buckets("p")] == ["bucket-1"]


def test_storage_port_requires_credentials(service: Service) -> None:
    """Programs share the machine's network, so they can reach the port."""
    target = "/storage/v1/b/bucket-p/o/x?alt=media"
    status, headers, body = send_request(service.port, "GET", target)
    assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="trainshed"')
    assert "trainshed env" in json.loads(body)["error"]["message"]
    wrong = {"Authorization": "Bearer wrong"}
    assert send_request(service.port, "GET", target, headers=wrong)[0] == 401
    assert send_request(service.port, "GET", f"/with/{'k' * 32}{target}")[0] == 401
    key = service.address().removeprefix(f"http://127.0.0.1:{service.port}")
    assert send_request(service.port, "GET", f"{key}{target}")[2] == b"old"
    for name in ("nowhere-1", "bucket-p"):
        for part in ("", "/o", "/iam/testPermissions?permissions=storage.objects.get"):
            assert send_request(service.port, "GET", f"/storage/v1/b/{name}{part}")[0] == 401
    assert send_request(service.port, "GET", "/storage/v1/b?project=p")[0] == 401


def test_permission_changes_of_a_user_apply_to_the_next_request(service: Service) -> None:
    """Changes of the access file apply to the next request."""
    token = add_user(service.tokens, "ana@test", "roles/storage.objectViewer", "p")
    service.publish()
    with_key = f"/with/{storage_key(token)}"

    def status(method: str, target: str) -> int:
        by_token = send_request(service.port, method, target, headers={"Authorization": f"Bearer {token}"})
        by_key = send_request(service.port, method, f"{with_key}{target}")
        assert by_token[0] == by_key[0], target
        return by_token[0]

    mine, foreign = "/storage/v1/b/bucket-p/o/x", "/storage/v1/b/bucket-q/o/x"
    assert status("GET", f"{mine}?alt=media") == 200
    assert status("GET", "/storage/v1/b?project=p") == 200
    assert status("GET", "/storage/v1/b/shared-1/o/x") == 200
    refused = [("GET", path) for path in (foreign, "/storage/v1/b?project=q", "/storage/v1/b")]
    refused += [("DELETE", mine), ("DELETE", "/storage/v1/b/bucket-p"), ("GET", "/bucket-q/x")]
    refused += [("DELETE", "/storage/v1/b/shared-1/o/x"), ("POST", "/storage/v1/b?project=p")]
    assert [status(*request) for request in refused] == [403] * len(refused)
    add_user(service.tokens, "ana@test", "roles/storage.admin", "q")
    service.publish()
    assert status("GET", foreign) == 200
    assert status("DELETE", mine) == 403
    service.tokens.replace(AccessBook())
    service.publish()
    assert status("GET", mine) == 401


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("way", ["port", "gateway"])
def test_running_requests_end_when_their_token_is_revoked(service: Service, way: str, by_key: bool) -> None:
    """Within seconds, a download is interrupted and an upload is rejected. An unverified header with an
    expired token has no effect."""
    token, size = add_user(service.tokens, "ana@test", "roles/storage.objectUser", "p"), 64 * MIB
    service.publish()
    key = f"/with/{storage_key(token)}" if by_key else ""
    shown = "Basic x.eyJleHAiOjB9" if by_key else f"Bearer {token}"
    upload = f"{key}/upload/storage/v1/b/bucket-p/o?uploadType=media&name="
    service.put("bucket-p", "big", bytes(size))
    who = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: {shown}\r\nContent-Length: "
    with serving(service.gateway()) as gateway:
        to = ("127.0.0.1", gateway if way == "gateway" else service.port)
        with socket.create_connection(to, 60) as down, socket.create_connection(to, 60) as up:
            down.sendall(f"GET {key}/storage/v1/b/bucket-p/o/big?alt=media {who}0\r\n\r\n".encode())
            assert down.recv(100).startswith(b"HTTP/1.1 200 ")
            up.sendall(f"POST {upload}late {who}999\r\nExpect: 100-continue\r\n\r\n".encode())
            assert up.recv(100).startswith(b"HTTP/1.1 100 ")
            service.tokens.replace(AccessBook())
            service.publish()
            time.sleep(1.1)  # A check just before the change is valid for one second.
            for _ in range(900):
                up.sendall(b"x")
                if select.select([up], [], [], 0.05)[0]:
                    break
            assert up.recv(100).startswith(b"HTTP/1.1 401 ")
            with contextlib.suppress(ConnectionResetError):
                while block := down.recv(MIB):
                    size -= len(block)
    assert size > 0


def test_console_download_ends_with_its_session(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_RECHECK_INTERVAL", 0)
    service.put("bucket-p", "big", bytes(MIB))
    sent: list[int] = []
    visit: Any = SimpleNamespace(
        principal=Principal("ana@test", Rights(ROLES[OWNER])),
        is_valid=lambda: not any(sent),
        buckets=service.uds,
        query={"object": "big"}.get,
        encode_variable={"bucket": "bucket-p"}.get,
    )
    download = asyncio.run(buckets.download(visit))

    async def take(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    never: Any = asyncio.Event().wait
    asyncio.run(download.send(never, take))
    assert 0 < sum(sent) < MIB


def test_token_expiry_does_not_end_running_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients renew a token between two requests."""
    monkeypatch.setattr(authentication, "_RECHECK_INTERVAL", 0)
    jobs, now = JobTokens(b"k" * 32, clock.now), clock.now() // 10**9

    async def refuse() -> None:
        raise Unauthenticated("revoked")

    for seconds, outcome in ((-1, contextlib.nullcontext()), (60, pytest.raises(Unauthenticated))):
        program, _ = jobs.mint(JobClaims(7, 1, "workerpool0-0", "p", "sa@p"), seconds)
        account = account_tokens.mint(jobs.account_secret, Bearer("sa@p"), now, seconds)
        for token in (program, account):
            with outcome:
                asyncio.run(authentication.PermissionRecheck(refuse, f"Bearer {token}")())


def test_job_token_and_endpoint_give_the_same_access(service: Service) -> None:
    """While the program's service account is disabled, the token and the endpoint give access only to the
    account's name. An account that was never created is not checked."""
    account = "/computeMetadata/v1/instance/service-accounts/default"

    def answer(path: str) -> tuple[int, Any]:
        return ask(service, program("p"), "GET", path, headers={"Metadata-Flavor": "Google"})

    def status(token: str, bucket: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return send_request(service.port, "GET", f"/storage/v1/b/{bucket}", headers=headers)[0]

    token = answer(f"{account}/token")[1]["access_token"]
    read = JobTokens.open(service.file.with_name(KEY_FILE), clock.now).read(token)
    assert read == JobClaims(7, 1, "workerpool0-0", "p", "sa@p")
    assert (status(token, "bucket-q"), status(f"{token[:-2]}xx", "bucket-p")) == (403, 401)
    for is_disabled in (False, True):
        service.tokens.replace(
            AccessBook(accounts={"sa@p": ServiceAccount("sa@p", "p", 0, disabled=is_disabled)})
        )
        service.publish()
        statuses = {answer(f"{account}/{part}")[0] for part in ("token", "identity?audience=a")}
        statuses |= {answer("/storage/v1/b/bucket-p/o/x")[0], status(token, "bucket-p")}
        assert statuses == {401 if is_disabled else 200}
        assert answer(f"{account}/email") == (200, b"sa@p")


def test_program_cannot_make_a_bucket_public(service: Service) -> None:
    """Neither the program's endpoint nor its token permits it. Otherwise any browser could open the program's
    pages (XSS)."""
    key = Path(service.setup.tokens).with_name(KEY_FILE)
    minted = JobTokens.open(key, clock.now).mint(JobClaims(7, 1, "workerpool0-0", "p", "sa@p"))
    token = {"Authorization": f"Bearer {minted[0]}"}
    place = "/storage/v1/b/bucket-p/iam"
    role = "roles/storage.objectViewer"
    policy = {"bindings": [{"role": role, "members": ["serviceAccount:a@q"]}]}
    for member in ("allUsers", "allAuthenticatedUsers"):
        open_policy = {"bindings": [{"role": role, "members": ["serviceAccount:a@q", member]}]}
        status, refusal = ask(service, program("p"), "PUT", place, open_policy)
        assert status == 403 and member in refusal["error"]["message"]
        body = json.dumps(open_policy).encode()
        assert send_request(service.port, "PUT", place, body, token)[0] == 403
    assert ask(service, program("p"), "PUT", place, policy)[0] == 200
    assert ask(service, program("q", "a@q"), "GET", "/storage/v1/b/bucket-p/o/x")[0] == 200


def test_objects_with_html_content_are_not_served_as_web_pages(service: Service) -> None:
    """Programs write the objects, and the port may be the console's (stored XSS)."""
    page = {**service.bearer, "Content-Type": "text/html"}
    target = "/upload/storage/v1/b/bucket-p/o?uploadType=media&name=a/page%20%22.html"
    assert send_request(service.port, "POST", target, b"<script>1</script>", page)[0] == 200
    paths = (
        "/storage/v1/b/bucket-p/o/a%2Fpage%20%22.html?alt=media",
        "/download/storage/v1/b/bucket-p/o/a%2Fpage%20%22.html?alt=media",
        "/bucket-p/a/page%20%22.html",
        f"/with/{storage_key(service.token)}/bucket-p/a/page%20%22.html",
    )
    purposes = ("", "empty", "image", "document", "iframe", "embed", "script")
    for purpose, path in itertools.product(purposes, paths):
        sent = {**service.bearer, **({"Sec-Fetch-Dest": purpose} if purpose else {})}
        status, headers, content = send_request(service.port, "GET", path, headers=sent)
        assert (status, content) == (200, b"<script>1</script>")
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        if purpose in ("document", "iframe", "embed", "script"):
            assert headers["content-disposition"] == "attachment; filename*=UTF-8''page%20%22.html"
            assert headers["content-type"] == "application/octet-stream"
        else:
            assert "content-disposition" not in headers
            assert headers["content-type"] == "text/html"
    # The same headers protect all other answers.
    others = "/bucket-q/x", "/bucket-p", "/no/<script>", "/storage/v1/b/bucket-p/o", "/storage/v9/x"
    for path, sent in itertools.product(others, ({}, service.bearer, {"Host": "evil.example"})):
        _, headers, _ = send_request(service.port, "GET", path, headers=sent)
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert headers["x-content-type-options"] == "nosniff"


@pytest.fixture(params=["port", "gateway"])
def address(request: pytest.FixtureRequest, service: Service) -> Iterator[str]:
    """The value of STORAGE_EMULATOR_HOST in the output of `trainshed env`."""
    if request.param == "port":
        yield service.address()
        return
    with serving(service.gateway()) as port:
        yield service.address(port)


def test_client_can_exchange_a_refresh_token_at_a_url_that_contains_a_storage_key(address: str) -> None:
    """Google's C++ library, which PyArrow uses for `gs://`, does this with the variables of `trainshed
    env`."""
    port = int(address.split(":")[2].split("/", maxsplit=1)[0])
    document = credentials_document("t", "p", address.partition("/with/")[0])
    key = address.partition("/with/")[2]
    assert document["token_uri"].endswith("/oauth2/token")
    form = f"grant_type=refresh_token&refresh_token={document['refresh_token']}".encode()
    status, _, body = send_request(port, "POST", f"/with/{key}/oauth2/token", form)
    assert status == 200
    bearer = {"Authorization": f"Bearer {json.loads(body)['access_token']}"}
    assert send_request(port, "GET", f"/with/{key}/storage/v1/b/bucket-p/o", headers=bearer)[0] == 200
    # Without the key, the token gives no access, and an unknown key returns no token.
    assert send_request(port, "GET", "/storage/v1/b/bucket-p/o", headers=bearer)[0] == 401
    assert send_request(port, "POST", f"/with/{'x' * 32}/oauth2/token", form)[0] == 401


def test_damaged_access_file_grants_no_access(service: Service) -> None:
    Path(service.setup.tokens).write_text("{")
    assert service.call("GET", "/storage/v1/b")[0] == 503
    assert send_request(service.port, "GET", "/storage/v1/b")[0] == 401
    Path(service.setup.tokens).unlink()
    assert service.call("GET", "/storage/v1/b")[0] == 503
    service.publish()
    assert service.call("GET", "/storage/v1/b")[0] == 200
    assert send_request(service.port, "GET", "/storage/v1/b")[0] == 401


def test_token_with_a_line_break_is_not_forwarded() -> None:
    """The bucket process forwards the token to the service, so a line break would permit request
    smuggling."""
    assert not is_json_web_token("eyJ\r\n\r\nPOST /x HTTP/1.1\r\nX: .")


def test_brute_force_delays_affect_only_the_attacker(service: Service) -> None:
    """The delays apply to tokens, keys in addresses, and refresh tokens, as at the main port."""

    def took(token: str, method: str, target: str, body: bytes = b"") -> tuple[int, bool]:
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {token}"}
        status, _, _ = send_request(service.port, method, target, body, headers)
        return status, time.monotonic() - began >= 1

    target = "/storage/v1/b/bucket-p/o/x"
    for _ in range(30):
        took("guessed", "GET", target)
    form = b"grant_type=refresh_token&refresh_token=guessed"
    assert took("guessed", "POST", "/oauth2/token", form) == (401, True)
    assert took("guessed", "GET", f"/with/{'k' * 32}{target}") == (401, True)
    # On a busy machine one call may take this long, but not all ten.
    assert any(took(service.token, "GET", target) == (200, False) for _ in range(10))


@as_root_only
def test_object_tests_of_unreadable_files_pass_for_an_unprivileged_user() -> None:
    run_as_nobody("tests/unit/test_buckets_objects.py", "-k", "unreadable_file", timeout=120)


def test_hundreds_of_programs_that_wait_for_preemption_are_notified(service: Service) -> None:
    """Waiting connections use no threads, and a disconnected client frees its connection."""
    path = "/computeMetadata/v1/instance/preempted"
    headers = {"Metadata-Flavor": "Google"}
    watchers = [Relay(service, program("p")) for _ in range(300)]
    for watcher in watchers:
        watcher.request("GET", f"{path}?wait_for_change=true", headers=headers)
    for watcher in watchers[100:]:
        watcher.close()
    assert ask(service, program("p"), "GET", path, headers=headers) == (200, b"FALSE")
    notice = {**json.loads(program("p")), "notice": "preempted"}
    shim = Relay(service, json.dumps(notice).encode() + b"\n")
    shim.connect()
    answers = [watcher.getresponse() for watcher in watchers[:100]]
    assert {answer.read() for answer in answers} == {b"TRUE"}
    last = Relay(service, program("p"))
    last.request("GET", path, headers=headers)
    answer = last.getresponse()
    assert answer.read() == b"TRUE"
    assert ask(service, program("q"), "GET", path, headers=headers) == (200, b"FALSE")
    tag = answer.headers["ETag"]
    last.request("GET", f"{path}?wait_for_change=true&last_etag={tag}", headers=headers)
    shim.close()
    assert last.getresponse().read() == b"FALSE"
    # An ending process does not wait for hanging GETs.
    last.request("GET", f"{path}?wait_for_change=true", headers=headers)
    begun = time.monotonic()
    service.stop()
    assert time.monotonic() - begun < 4
    assert last.getresponse().status == 503
