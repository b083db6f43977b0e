"""ID tokens and access tokens of an issuer as credentials, and validation of the issuer (docs/team.md)."""

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import uvicorn
from joserfc import jws

from tests.console.browser import Browser, ConsoleService, text_of
from tests.console.signing_in.conftest import (
    ANA,
    JOB_SERVICE,
    JOBS,
    NOW,
    WHOAMI,
    base64url,
    exchange_token,
    expect_rejection,
    grant_viewer,
    sign_in_with_issuer,
)
from tests.console.test_sessions import JOB
from tests.contract.api.api_service import LOCATION
from tests.contract.api.grpc_service import GrpcApiService
from tests.issuer import GCLOUD, ScriptedIssuer, issuing, new_key
from trainshed.access.account_tokens import MAX_CLOCK_SKEW
from trainshed.access.authentication_limits import SOURCE
from trainshed.access.issuers import signing_keys
from trainshed.buckets.authentication import Liveness
from trainshed.core.errors import Unauthenticated
from trainshed.replica.system.listening import listen_unix
from trainshed.serve.issuers import Issuers


class Clock:
    """The monotonic clock of the service, under control of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = 0.0
        import time

        real = time.monotonic
        monkeypatch.setattr("trainshed.serve.issuers.time.monotonic", lambda: real() + self._at)

    def advance(self, seconds: float) -> None:
        self._at += seconds


async def test_token_exchange_returns_the_id_token_and_its_expiry(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    """`gcloud auth print-identity-token` prints such tokens, and Google's libraries exchange them."""
    service.clock += 20 * 10**9
    token = issuer.id_token(now=NOW, aud="gcloud", email="Ana@Corp.Example")
    answer = await exchange_token(service, token)
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    assert (answer.json["access_token"], answer.json["expires_in"]) == (token, 600 + MAX_CLOCK_SKEW - 20)
    assert (await service.call("GET", JOBS, token=token)).status == 403, "a new user has no permissions"
    await grant_viewer(service, f"user:{ANA}")
    assert (await service.call("GET", JOBS, token=token)).status == 200


async def test_id_token_is_accepted_by_all_apis_until_its_expiry(
    tmp_path: Path, issuer: ScriptedIssuer
) -> None:
    """REST, gRPC and the service's own API accept concurrent requests with the token. The token is not
    stored."""
    async with GrpcApiService(tmp_path, [issuer.settings()]).open() as service:
        await grant_viewer(service, "group:ml")
        token = issuer.id_token(now=NOW, groups=["ml"])
        for _ in range(2):
            token_browser = [service.call("GET", path, token=token) for path in (JOBS, WHOAMI) * 5]
            assert {answer.status for answer in await asyncio.gather(*token_browser)} == {200}
            page = await service.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=token)
            assert not page.custom_jobs
        assert issuer.paths.count("/keys") == 1
        for number in range(25):
            other = issuer.id_token(now=NOW, groups=["ml"], jti=str(number))
            await service.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=other)
        assert not service.keeper.book.tokens
        service.clock += 660 * 10**9
        answer = await service.call("GET", JOBS, token=token)
        assert answer.status == 401 and "expired" in answer.error["message"]


@pytest.mark.parametrize("is_own", [False, True])
async def test_revoked_id_token_is_rejected_everywhere(
    service: ConsoleService, issuer: ScriptedIssuer, is_own: bool
) -> None:
    """Revocation also covers older ID tokens of the user that the service has never received."""
    await grant_viewer(service, f"user:{ANA}")
    token, unseen = (issuer.id_token(now=NOW, jti=name) for name in "ab")
    uid = (await service.result("POST", JOBS, JOB))["name"].rpartition("/")[2]
    async with service.stream(f"/trainshed/v1/jobs/{uid}/watch", token=token) as lines:
        assert (await lines.next())["name"].endswith(uid)
        by, whose = (token, ANA) if is_own else (service.token, "Ana@corp.example")
        assert (await service.call("DELETE", f"/trainshed/v1/tokens/{whose}", token=by)).status == 200
        assert await lines.next() is None
    for other in (token, unseen, issuer.access_token(NOW)):
        await expect_rejection(service, other, "were revoked after this token")
    service.clock += (later := 62) * 10**9
    for new in (issuer.id_token(now=NOW + later), issuer.access_token(NOW + later)):
        assert (await service.call("GET", JOBS, token=new)).status == 200


@pytest.mark.parametrize("changed", ["nothing", "issuer", "client_id", "all"])
async def test_sign_ins_of_an_issuer_removed_from_the_settings_are_invalid(
    tmp_path: Path, issuer: ScriptedIssuer, changed: str
) -> None:
    """This covers browsers and ID tokens, even if another issuer has the same name."""
    service = ConsoleService(tmp_path, issuers=[issuer.settings()])
    browser, token_browser, by_gcloud = Browser(service), Browser(service), Browser(service)
    await sign_in_with_issuer(browser, issuer)
    await token_browser.sign_in(token=issuer.id_token(now=NOW))
    await by_gcloud.sign_in(token=issuer.access_token(NOW))
    fields = {changed: "https://other.example"} if changed in ("issuer", "client_id") else {}
    left = [] if changed == "all" else [issuer.settings(**fields)]
    begun = Issuers(left, service.keeper, service.now)
    await begun.revoke_removed_issuers()
    service.tokens.issuers = begun.marks
    statuses = {(await visitor.get("/team")).status for visitor in (browser, token_browser, by_gcloud)}
    assert statuses == {200 if changed == "nothing" else 303}
    assert len(service.keeper.book.tokens) == (changed == "nothing")
    service.close()


async def test_gcloud_access_token_is_verified_by_its_issuer(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REST, gRPC and the service's own API accept the token. The issuer verifies it every three minutes, and
    it is not stored."""
    async with GrpcApiService(tmp_path, [issuer.settings()]).open() as service:
        token = issuer.access_token(NOW)
        assert (await service.call("GET", JOBS, token=token)).status == 403, "a new user"
        await grant_viewer(service, f"user:{ANA}")
        token_browser = [service.call("GET", path, token=token) for path in (JOBS, WHOAMI) * 5]
        assert {answer.status for answer in await asyncio.gather(*token_browser)} == {200}
        await service.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=token)
        for span, times in ((0, 1), (90, 1), (91, 2)):
            clock = Clock(monkeypatch)
            clock.advance(span)
            assert (await service.call("GET", JOBS, token=token)).status == 200
            assert len(issuer.paths) == times
        assert not service.keeper.book.tokens
        service.clock += 3599 * 10**9
        answer = await service.call("GET", JOBS, token=token)
        assert answer.status == 401 and "expired" in answer.error["message"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"aud": "x", "azp": "x"},
            f"was issued for x, but this service accepts only tokens for {GCLOUD} and gcloud and tr",
        ),
        ({"azp": "x"}, f"was issued for {GCLOUD} and x"),
        ({"exp": str(NOW)}, "has expired"),
        ({"exp": str(NOW + 3661)}, "valid for more than an hour"),
        ({"exp": "1e9"}, "has expired"),
        ({"email_verified": "false"}, "does not confirm that the address"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "not an address of a user"),
    ],
)
async def test_invalid_access_token_is_rejected_with_a_reason(
    service: ConsoleService, issuer: ScriptedIssuer, changes: dict[str, str], why: str
) -> None:
    await expect_rejection(service, issuer.access_token(NOW, **changes), why)


async def test_unauthenticated_clients_are_distinguished_by_their_network_on_all_ports(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all unknown clients would share one limit. The bucket process forwards the client's address.

    Programs of jobs use the same socket without an address.
    """
    sources: list[str] = []

    def network_of(source: str) -> str:
        sources.append(source)
        return source

    def peer(_: object) -> str:
        return "192.0.2.1"

    monkeypatch.setattr("trainshed.serve.issuers.network_of", network_of)
    monkeypatch.setattr("trainshed.api.grpc._source", peer)
    async with GrpcApiService(tmp_path, [issuer.settings()]).open() as service:
        await grant_viewer(service, f"user:{ANA}")
        first, second, third = (issuer.access_token(NOW) for _ in range(3))
        await service.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=first)
        server = uvicorn.Server(uvicorn.Config(service.app, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve([listen_unix(tmp_path / "programs")]))
        SOURCE.set("192.0.2.2")
        caller = await Liveness(tmp_path / "programs").holder(f"Bearer {second}\u2003")
        head = f"GET {WHOAMI} HTTP/1.1\r\nHost: ml.googleapis.com\r\nX-Trainshed-Source: a:b\r\n"
        head += f"Host: localhost\r\nAuthorization: Bearer {third}\r\n\r\n"
        reader, writer = await asyncio.open_unix_connection(tmp_path / "programs")
        writer.write(head.encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        server.should_exit = True
        await serving
    assert (caller.email, sources) == (ANA, ["192.0.2.1", "192.0.2.2", ""])


async def test_flood_of_unknown_access_tokens_does_not_block_other_users(
    service: ConsoleService, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service verifies each unknown token once and sequentially, and keeps the results for other
    users."""
    known, new = issuer.access_token(NOW), issuer.access_token(NOW)
    questions = Counter[str]()

    async def answer_request(address: str, *_: object) -> tuple[int, bytes]:
        questions.update([token := address.rpartition("=")[2]])
        questions["now"] += (claims := issuer.access.get(token)) is None
        await asyncio.sleep(0)
        assert claims or questions.pop("now") == 1
        return 200 if claims else 400, json.dumps(claims).encode()

    async def show(token: str, source: str) -> None:
        SOURCE.set(source)
        await service.issuers.authenticate(f"Bearer {token}")

    monkeypatch.setattr("trainshed.serve.issuers._request", answer_request)
    monkeypatch.setattr("trainshed.serve.issuers._MAX_CACHED_TOKENS", 22)
    await show(known, "")
    flood = [asyncio.create_task(show(f"ya29.{at % 20}", f"2001:db8::{at}")) for at in range(60)]
    await asyncio.gather(*(asyncio.create_task(show(new, f"192.0.2.{at}")) for at in range(20)))
    assert not all(task.done() for task in flood)
    flood += [asyncio.create_task(show("ya29.x", "2001:db8::"))]
    refusals = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Unauthenticated}
    await show(known, "")
    assert [questions[token] for token in (known, "ya29.7")] == [1, 1]


def with_header(issuer: ScriptedIssuer, header: dict[str, Any]) -> str:
    _, content, _ = issuer.id_token(now=NOW).split(".")
    return f"{base64url(json.dumps(header))}.{content}."


def unsigned_token(issuer: ScriptedIssuer) -> str:
    return with_header(issuer, {"alg": "none"})


def deeply_nested(_: ScriptedIssuer) -> str:
    header, content = json.dumps({"alg": "RS256"}), f'{{"iss": {"[" * 20000}{"]" * 20000}}}'
    return f"{base64url(header)}.{base64url(content)}."


def signed_with_the_public_key(issuer: ScriptedIssuer) -> str:
    """Return a token signed by HS256 with the public key as the secret (algorithm confusion)."""
    signed = with_header(issuer, {"alg": "HS256", "kid": "1"}).rstrip(".")
    digest = hmac.digest(issuer.keys[0].as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64url(digest)}"


def signed_with_another_key(issuer: ScriptedIssuer) -> str:
    return issuer.id_token(now=NOW, key=new_key("1"))


def of_an_unknown_issuer(_: ScriptedIssuer) -> str:
    return "eyJhbGciOiJub25lIn0"


def nested_token(issuer: ScriptedIssuer) -> str:
    """Return a token whose signed content is another token instead of claims."""
    nested = jws.serialize_compact({"alg": "RS256", "kid": "1"}, unsigned_token(issuer), issuer.keys[0])
    assert nested.startswith("eyJ")
    return nested


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (unsigned_token, "not signed by a key"),
        (signed_with_the_public_key, "not signed by a key"),
        (signed_with_another_key, "not signed by a key"),
        (of_an_unknown_issuer, "not known to this service"),
        (nested_token, "or by an issuer"),
        (partial(with_header, header={"alg": "RS256", "kid": "1", "crit": [["b64"]]}), "not signed by"),
        (partial(with_header, header={"alg": "HS256", "crit": [["b64"]]}), "not signed by"),
        (deeply_nested, "or by an issuer"),
    ],
)
async def test_forged_id_token_is_rejected(
    service: ConsoleService, issuer: ScriptedIssuer, made: Callable[[ScriptedIssuer], str], why: str
) -> None:
    await expect_rejection(service, made(issuer), why)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "or by an issuer"),
        ({"aud": "another-client"}, "not a client of this service"),
        ({"aud": ["gcloud", "x"], "azp": "x"}, "not a client of this service"),
        ({"aud": ["gcloud", "x"]}, "not a client of this service"),
        ({"aud": ["gcloud", "x"], "azp": ["gcloud"]}, "not a client of this service"),
        ({"exp": NOW - 61}, "expired"),
        ({"iat": NOW + 120}, "not valid"),
        ({"nbf": NOW + 120}, "not valid"),
        ({"exp": None}, "not valid"),
        ({"exp": 1e300}, "is not a time"),
        ({"email_verified": False}, "does not confirm that the address"),
        ({"email_verified": "true"}, "does not confirm that the address"),
        ({"email": "owner@trainshed.local"}, "not an address of a user"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "not an address of a user"),
        ({"email": "a@b@c"}, "not an address of a user"),
        ({"email": "ana\0@corp.example"}, "not an address of a user"),
        ({"email": "ana\N{RIGHT-TO-LEFT OVERRIDE}@corp.example"}, "not an address of a user"),
        ({"email": "mi\N{KELVIN SIGN}e@corp.example"}, "not an address of a user"),
    ],
)
async def test_id_token_with_invalid_claims_is_rejected(
    service: ConsoleService, issuer: ScriptedIssuer, claims: dict[str, Any], why: str
) -> None:
    await expect_rejection(service, issuer.id_token(now=NOW, **claims), why)
    assert not [token for token in service.services.access.book.tokens.values() if token.issuer]


async def test_issuer_is_trusted_only_for_its_own_domains_and_groups(
    tmp_path: Path, issuer: ScriptedIssuer
) -> None:
    with issuing(lambda: NOW) as evil:
        known, alone = ("corp.example",), evil.settings(name="Evil", groups_claim="")
        issuers = [issuer.settings(domains=known), alone]
        service = ConsoleService(tmp_path, issuers=issuers)
        assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
        for token, why in (
            (issuer.id_token(now=NOW, email="eve@corp.example.evil.example"), "of corp.example"),
            (evil.id_token(now=NOW, iss=issuer.address), "not signed by a key"),
        ):
            assert why in (await exchange_token(service, token)).json["error_description"]
        await grant_viewer(service, "group:ml-team")
        for of, status in ((issuer, 200), (evil, 403)):
            token = of.id_token(now=NOW, groups=["ml-team"])
            assert (await service.call("GET", JOBS, token=token)).status == status
        service.close()


async def test_unknown_key_ids_refresh_issuer_keys_at_a_limited_rate(
    service: ConsoleService, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
    issuer.keys.append(new_key("2"))
    clock = Clock(monkeypatch)
    assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 400, (
        "the keys were read a moment ago"
    )
    clock.advance(31)
    assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
    read = issuer.paths.count("/keys")
    for token in (
        issuer.id_token(now=NOW, key=new_key("3")),
        issuer.id_token(now=NOW, iss="https://evil.example"),
    ):
        assert (await service.call("GET", WHOAMI, token=token)).status == 401
    for _ in range(20):
        await exchange_token(
            service, issuer.id_token(now=NOW, key=new_key("3")) if _ == 0 else unsigned_token(issuer)
        )
    assert issuer.paths.count("/keys") == read


async def test_cached_issuer_keys_stay_valid_while_the_issuer_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuing(lambda: NOW) as issuer:
        service = ConsoleService(tmp_path, issuers=[issuer.settings()])
        assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
    Clock(monkeypatch).advance(7200)
    assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
    service.close()
    other = ConsoleService(tmp_path / "other", issuers=[issuer.settings()])
    for _ in range(2):
        answer = await exchange_token(other, issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.json["error_description"]
        answer = await other.call("GET", WHOAMI, token=issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.error["message"]
        assert (await Browser(other).sign_in(token=issuer.id_token(now=NOW))).status == 503
    monkeypatch.setattr("trainshed.serve.issuers._read", None)
    assert (await exchange_token(other, issuer.id_token(now=NOW))).status == 503, (
        "the issuer was requested a moment ago"
    )
    other.close()


@pytest.mark.parametrize("keys", ["https://sso.example:99999", "https://sso..example"])
async def test_invalid_issuer_address_is_requested_only_once(
    service: ConsoleService, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setattr(issuer, "metadata", lambda: {"issuer": issuer.address, "jwks_uri": keys})
    for _ in range(2):
        answer = await service.call("GET", WHOAMI, token=issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.error["message"]
    assert len(issuer.paths) == 1


NEAR = "127.0.0.1 127.1 0.0.0.0 [::1] [::ffff:127.0.0.1] localhost. console.localhost"
LINK_LOCAL = "169.254.169.254 2852039166 0xa9fea9fe [fe80::1] [fe80::1%25eth0]"


@pytest.mark.parametrize("near", [*NEAR.split(), *LINK_LOCAL.split()])
async def test_ssrf_by_a_remote_issuer_that_names_local_addresses_is_prevented(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, near: str
) -> None:
    """Server-side request forgery: this includes link-local addresses, where clouds serve machine
    credentials."""
    elsewhere = "https://sso.corp.example"
    published = {**issuer.metadata(), "issuer": elsewhere, "jwks_uri": f"https://{near}/"}

    async def answer_request(address: str, *_: object) -> tuple[int, bytes]:
        assert address.startswith(elsewhere)
        return 200, json.dumps(published).encode()

    monkeypatch.setattr("trainshed.serve.issuers._request", answer_request)
    service = ConsoleService(tmp_path, issuers=[issuer.settings(issuer=elsewhere)])
    answer = await service.call("GET", WHOAMI, token=issuer.id_token(now=NOW, iss=elsewhere))
    assert answer.status == 503 and "does not publish data" in answer.error["message"]
    service.close()


async def test_slow_issuer_response_is_limited_by_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.serve.issuers._TIMEOUT", 0.2)
    left = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leaving = asyncio.gather(reader.read(), return_exceptions=True)
        writer.write(b"HTTP/1.1 200 OK\r\nx: ")
        while not leaving.done():
            writer.write(b"y")
            await asyncio.wait((leaving,), timeout=0.02)
        writer.close()
        left.set()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        service = ConsoleService(tmp_path, issuers=[ScriptedIssuer(address).settings()])
        async with asyncio.timeout(60):
            answer = await Browser(service).get("/login/with?issuer=Corp")
            await left.wait()
            refusal = (await service.call("GET", WHOAMI, token="ya29.x")).error["message"]
    assert answer.status == 503 and "Corp does not answer" in text_of(answer)
    assert "Corp does not answer" in refusal
    service.close()


@pytest.mark.parametrize("age", [31, 7200])
async def test_requests_do_not_wait_for_issuer_keys_that_are_fetched_for_other_users(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    """A request waits neither for another issuer, nor for new keys, nor for a refresh of known keys."""
    other = issuer.settings(name="Other", issuer="https://sso.corp.example")
    service = ConsoleService(tmp_path, issuers=[issuer.settings(), other])
    assert (await exchange_token(service, issuer.id_token(now=NOW))).status == 200
    Clock(monkeypatch).advance(age)
    forged = [issuer.id_token(now=NOW, key=new_key("2"))]
    forged.append(issuer.id_token(now=NOW, iss=other.issuer))
    begun = asyncio.Queue[None]()

    async def read(*_: object) -> NoReturn:
        begun.put_nowait(None)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("trainshed.serve.issuers._read", read)
    waiting = [asyncio.create_task(exchange_token(service, token)) for token in forged]
    for _ in waiting:
        await asyncio.wait_for(begun.get(), 60)
    async with asyncio.timeout(60):
        assert (await exchange_token(service, issuer.id_token(now=NOW, jti="2"))).status == 200
    for task in waiting:
        task.cancel()
    service.close()


async def test_unreadable_issuer_key_does_not_invalidate_other_keys(
    service: ConsoleService,
    issuer: ScriptedIssuer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An issuer may publish keys of unknown types (RFC 7517, section 5)."""
    good = issuer.keys[0].as_dict(private=False)
    odd: list[Any] = [{**good, "n": "!"}, {"kty": "AKP", "use": "sig"}, {"kty": "EC"}, {}, None]
    keys = [*odd, {**good, "use": "enc", "n": 7}, good]
    monkeypatch.setattr(issuer, "jwks", lambda: {"keys": keys})
    assert (await service.call("GET", WHOAMI, token=issuer.id_token(now=NOW))).status == 200
    [line] = [record.getMessage() for record in caplog.records if "keys" in record.getMessage()]
    assert line.startswith(f"Corp publishes {len(odd)} keys that cannot be read")
    monkeypatch.setattr(issuer, "jwks", lambda: {"keys": "none"})
    Clock(monkeypatch).advance(7200)
    await expect_rejection(service, issuer.id_token(now=NOW), "not signed by a key")


def test_private_keys_of_an_issuer_are_ignored_and_at_most_100_keys_are_read() -> None:
    private = {"kty": "RSA", "e": "AQAB", "n": "_" * 342, "d": "v" * 342}
    keys, faults = signing_keys({"keys": [{"kty": "oct", "k": "A"}, private] * 51})
    assert not keys.keys and len(faults) == 100
    assert all("the key is not a public key" in fault for fault in faults)
