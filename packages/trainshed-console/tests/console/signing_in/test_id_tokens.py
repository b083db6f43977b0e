"""ID tokens and access tokens of an issuer as credentials (docs/team.md), and what an issuer may say."""

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

from tests.console.browser import Browser, ConsoleHouse, text_of
from tests.console.signing_in.conftest import (
    ANA,
    JOB_SERVICE,
    JOBS,
    NOW,
    WHO,
    exchanged,
    give,
    in_base64,
    refused,
    signed_in,
)
from tests.console.test_sessions import JOB
from tests.contract.api.grpc_house import GrpcHouse
from tests.contract.api.house import LOCATION
from tests.issuer import GCLOUD, ScriptedIssuer, issuing, new_key
from trainshed.access.account_tokens import MAX_CLOCK_SKEW
from trainshed.access.authentication_limits import SOURCE
from trainshed.access.issuers import signing_keys
from trainshed.buckets.authentication import Liveness
from trainshed.core.errors import Unauthenticated
from trainshed.replica.system.listening import listen_unix
from trainshed.serve.issuers import Issuers


class Clock:
    """The monotonic clock of the service, which is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = 0.0
        import time

        real = time.monotonic
        monkeypatch.setattr("trainshed.serve.issuers.time.monotonic", lambda: real() + self._at)

    def passes(self, seconds: float) -> None:
        self._at += seconds


async def test_an_id_token_is_exchanged_for_itself_for_as_long_as_it_is_good(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    """As `gcloud auth print-identity-token` prints one, and Google's libraries exchange them."""
    house.clock += 20 * 10**9
    token = issuer.id_token(now=NOW, aud="gcloud", email="Ana@Corp.Example")
    answer = await exchanged(house, token)
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    assert (answer.json["access_token"], answer.json["expires_in"]) == (
        token,
        600 + MAX_CLOCK_SKEW - 20,
    )
    assert (await house.call("GET", JOBS, token=token)).status == 403, "a new person has no right"
    await give(house, f"user:{ANA}")
    assert (await house.call("GET", JOBS, token=token)).status == 200


async def test_an_id_token_is_taken_as_it_is_until_it_expires(
    tmp_path: Path, issuer: ScriptedIssuer
) -> None:
    """By REST, gRPC and our own API, however many show it side by side, and no record is made of it."""
    async with GrpcHouse(tmp_path, [issuer.settings()]).open() as house:
        await give(house, "group:ml")
        token = issuer.id_token(now=NOW, groups=["ml"])
        for _ in range(2):
            shown = [house.call("GET", path, token=token) for path in (JOBS, WHO) * 5]
            assert {answer.status for answer in await asyncio.gather(*shown)} == {200}
            page = await house.ask(
                f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=token
            )
            assert not page.custom_jobs
        assert issuer.paths.count("/keys") == 1
        for number in range(25):
            other = issuer.id_token(now=NOW, groups=["ml"], jti=str(number))
            await house.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=other)
        assert not house.keeper.book.tokens
        house.clock += 660 * 10**9
        answer = await house.call("GET", JOBS, token=token)
        assert answer.status == 401 and "expired" in answer.error["message"]


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_revoked_id_token_is_good_for_nothing_any_more(
    house: ConsoleHouse, issuer: ScriptedIssuer, is_own: bool
) -> None:
    """Nor is another one from before: who signs out everywhere does not know them all."""
    await give(house, f"user:{ANA}")
    token, unseen = (issuer.id_token(now=NOW, jti=name) for name in "ab")
    uid = (await house.result("POST", JOBS, JOB))["name"].rpartition("/")[2]
    async with house.stream(f"/trainshed/v1/jobs/{uid}/watch", token=token) as lines:
        assert (await lines.next())["name"].endswith(uid)
        by, whose = (token, ANA) if is_own else (house.token, "Ana@corp.example")
        assert (await house.call("DELETE", f"/trainshed/v1/tokens/{whose}", token=by)).status == 200
        assert await lines.next() is None
    for other in (token, unseen, issuer.access_token(NOW)):
        await refused(house, other, "were revoked after this one")
    house.clock += (later := 62) * 10**9
    for new in (issuer.id_token(now=NOW + later), issuer.access_token(NOW + later)):
        assert (await house.call("GET", JOBS, token=new)).status == 200


@pytest.mark.parametrize("changed", ["nothing", "issuer", "client_id", "all"])
async def test_an_issuer_that_the_settings_do_not_have_any_more_has_signed_nobody_in(
    tmp_path: Path, issuer: ScriptedIssuer, changed: str
) -> None:
    """Neither in browsers nor by ID tokens, under which name ever another one stands there."""
    house = ConsoleHouse(tmp_path, issuers=[issuer.settings()])
    browser, shown, by_gcloud = Browser(house), Browser(house), Browser(house)
    await signed_in(browser, issuer)
    await shown.sign_in(token=issuer.id_token(now=NOW))
    await by_gcloud.sign_in(token=issuer.access_token(NOW))
    fields = {changed: "https://other.example"} if changed in ("issuer", "client_id") else {}
    left = [] if changed == "all" else [issuer.settings(**fields)]
    begun = Issuers(left, house.keeper, house.now)
    await begun.forget()
    house.tokens.issuers = begun.marks
    statuses = {(await visitor.get("/team")).status for visitor in (browser, shown, by_gcloud)}
    assert statuses == {200 if changed == "nothing" else 303}
    assert len(house.keeper.book.tokens) == (changed == "nothing")
    house.close()


async def test_gcloud_s_own_user_is_taken_by_what_the_issuer_tells_of_the_access_token(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By REST, gRPC and our own API. It is told every three minutes, and stored nowhere."""
    async with GrpcHouse(tmp_path, [issuer.settings()]).open() as house:
        token = issuer.access_token(NOW)
        assert (await house.call("GET", JOBS, token=token)).status == 403, "a new person"
        await give(house, f"user:{ANA}")
        shown = [house.call("GET", path, token=token) for path in (JOBS, WHO) * 5]
        assert {answer.status for answer in await asyncio.gather(*shown)} == {200}
        await house.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=token)
        for span, times in ((0, 1), (90, 1), (91, 2)):
            clock = Clock(monkeypatch)
            clock.passes(span)
            assert (await house.call("GET", JOBS, token=token)).status == 200
            assert len(issuer.paths) == times
        assert not house.keeper.book.tokens
        house.clock += 3599 * 10**9
        answer = await house.call("GET", JOBS, token=token)
        assert answer.status == 401 and "expired" in answer.error["message"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"aud": "x", "azp": "x"},
            f"is for x, but this service accepts only {GCLOUD} and gcloud and tr",
        ),
        ({"azp": "x"}, f"is for {GCLOUD} and x"),
        ({"exp": str(NOW)}, "has expired"),
        ({"exp": str(NOW + 3661)}, "valid for more than an hour"),
        ({"exp": "1e9"}, "has expired"),
        ({"email_verified": "false"}, "does not confirm that the address"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "no e-mail address of a user"),
    ],
)
async def test_an_access_token_that_proves_nothing_here_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer, changes: dict[str, str], why: str
) -> None:
    await refused(house, issuer.access_token(NOW, **changes), why)


async def test_strangers_at_grpc_or_the_storage_port_are_told_apart_as_well(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those of all the world would wait for each other, and the bucket process asks for its callers.
    Programs, which reach the same socket, do not say where they are."""
    sources: list[str] = []

    def network_of(source: str) -> str:
        sources.append(source)
        return source

    def peer(_: object) -> str:
        return "192.0.2.1"

    monkeypatch.setattr("trainshed.serve.issuers.network_of", network_of)
    monkeypatch.setattr("trainshed.api.grpc._source", peer)
    async with GrpcHouse(tmp_path, [issuer.settings()]).open() as house:
        await give(house, f"user:{ANA}")
        first, second, third = (issuer.access_token(NOW) for _ in range(3))
        await house.ask(f"{JOB_SERVICE}.ListCustomJobs", {"parent": LOCATION[4:]}, token=first)
        server = uvicorn.Server(uvicorn.Config(house.app, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve([listen_unix(tmp_path / "programs")]))
        SOURCE.set("192.0.2.2")
        caller = await Liveness(tmp_path / "programs").holder(f"Bearer {second}\u2003")
        head = f"GET {WHO} HTTP/1.1\r\nHost: ml.googleapis.com\r\nX-Trainshed-Source: a:b\r\n"
        head += f"Host: localhost\r\nAuthorization: Bearer {third}\r\n\r\n"
        reader, writer = await asyncio.open_unix_connection(tmp_path / "programs")
        writer.write(head.encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        server.should_exit = True
        await serving
    assert (caller.email, sources) == (ANA, ["192.0.2.1", "192.0.2.2", ""])


async def test_who_shows_many_unknown_access_tokens_stands_in_nobody_s_way(
    house: ConsoleHouse, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of them the issuer is asked once and one by one, and what is known of others is not forgotten."""
    known, new = issuer.access_token(NOW), issuer.access_token(NOW)
    questions = Counter[str]()

    async def asked(address: str, *_: object) -> tuple[int, bytes]:
        questions.update([token := address.rpartition("=")[2]])
        questions["now"] += (claims := issuer.access.get(token)) is None
        await asyncio.sleep(0)
        assert claims or questions.pop("now") == 1
        return 200 if claims else 400, json.dumps(claims).encode()

    async def show(token: str, source: str) -> None:
        SOURCE.set(source)
        await house.issuers.authenticate(f"Bearer {token}")

    monkeypatch.setattr("trainshed.serve.issuers._request", asked)
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


def headed(issuer: ScriptedIssuer, header: dict[str, Any]) -> str:
    _, content, _ = issuer.id_token(now=NOW).split(".")
    return f"{in_base64(json.dumps(header))}.{content}."


def unsigned(issuer: ScriptedIssuer) -> str:
    return headed(issuer, {"alg": "none"})


def deep(_: ScriptedIssuer) -> str:
    header, content = json.dumps({"alg": "RS256"}), f'{{"iss": {"[" * 20000}{"]" * 20000}}}'
    return f"{in_base64(header)}.{in_base64(content)}."


def by_the_public_key(issuer: ScriptedIssuer) -> str:
    """HS256, with what everybody knows as the secret."""
    signed = headed(issuer, {"alg": "HS256", "kid": "1"}).rstrip(".")
    digest = hmac.digest(issuer.keys[0].as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{in_base64(digest)}"


def by_another_key(issuer: ScriptedIssuer) -> str:
    return issuer.id_token(now=NOW, key=new_key("1"))


def by_nobody(_: ScriptedIssuer) -> str:
    return "eyJhbGciOiJub25lIn0"


def within_another(issuer: ScriptedIssuer) -> str:
    """What is signed is no claims but a token."""
    nested = jws.serialize_compact({"alg": "RS256", "kid": "1"}, unsigned(issuer), issuer.keys[0])
    assert nested.startswith("eyJ")
    return nested


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (unsigned, "signed by no key"),
        (by_the_public_key, "signed by no key"),
        (by_another_key, "signed by no key"),
        (by_nobody, "not known to this service"),
        (within_another, "or of an issuer"),
        (partial(headed, header={"alg": "RS256", "kid": "1", "crit": [["b64"]]}), "by no key"),
        (partial(headed, header={"alg": "HS256", "crit": [["b64"]]}), "by no key"),
        (deep, "or of an issuer"),
    ],
)
async def test_a_forged_id_token_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer, made: Callable[[ScriptedIssuer], str], why: str
) -> None:
    await refused(house, made(issuer), why)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "or of an issuer"),
        ({"aud": "another-client"}, "no client of this service"),
        ({"aud": ["gcloud", "x"], "azp": "x"}, "no client of this service"),
        ({"aud": ["gcloud", "x"]}, "no client of this service"),
        ({"aud": ["gcloud", "x"], "azp": ["gcloud"]}, "no client of this service"),
        ({"exp": NOW - 61}, "expired"),
        ({"iat": NOW + 120}, "not valid"),
        ({"nbf": NOW + 120}, "not valid"),
        ({"exp": None}, "not valid"),
        ({"exp": 1e300}, "is no time"),
        ({"email_verified": False}, "does not confirm that the address"),
        ({"email_verified": "true"}, "does not confirm that the address"),
        ({"email": "owner@trainshed.local"}, "no e-mail address of a user"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "no e-mail address of a user"),
        ({"email": "a@b@c"}, "no e-mail address of a user"),
        ({"email": "ana\0@corp.example"}, "no e-mail address of a user"),
        ({"email": "ana\N{RIGHT-TO-LEFT OVERRIDE}@corp.example"}, "no e-mail address of a user"),
        ({"email": "mi\N{KELVIN SIGN}e@corp.example"}, "no e-mail address of a user"),
    ],
)
async def test_an_id_token_that_proves_nothing_here_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer, claims: dict[str, Any], why: str
) -> None:
    await refused(house, issuer.id_token(now=NOW, **claims), why)
    assert not [token for token in house.services.access.book.tokens.values() if token.issuer]


async def test_an_issuer_vouches_for_its_domains_and_itself_alone(
    tmp_path: Path, issuer: ScriptedIssuer
) -> None:
    with issuing(lambda: NOW) as evil:
        known, alone = ("corp.example",), evil.settings(name="Evil", groups_claim="")
        issuers = [issuer.settings(domains=known), alone]
        house = ConsoleHouse(tmp_path, issuers=issuers)
        assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
        for token, why in (
            (issuer.id_token(now=NOW, email="eve@corp.example.evil.example"), "of corp.example"),
            (evil.id_token(now=NOW, iss=issuer.address), "signed by no key"),
        ):
            assert why in (await exchanged(house, token)).json["error_description"]
        await give(house, "group:ml-team")
        for of, status in ((issuer, 200), (evil, 403)):
            token = of.id_token(now=NOW, groups=["ml-team"])
            assert (await house.call("GET", JOBS, token=token)).status == status
        house.close()


async def test_new_keys_are_read_when_they_are_shown_and_a_flood_of_them_reads_nothing(
    house: ConsoleHouse, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
    issuer.keys.append(new_key("2"))
    clock = Clock(monkeypatch)
    assert (await exchanged(house, issuer.id_token(now=NOW))).status == 400, "read a moment ago"
    clock.passes(31)
    assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
    read = issuer.paths.count("/keys")
    for token in (
        issuer.id_token(now=NOW, key=new_key("3")),
        issuer.id_token(now=NOW, iss="https://evil.example"),
    ):
        assert (await house.call("GET", WHO, token=token)).status == 401
    for _ in range(20):
        await exchanged(
            house, issuer.id_token(now=NOW, key=new_key("3")) if _ == 0 else unsigned(issuer)
        )
    assert issuer.paths.count("/keys") == read


async def test_an_issuer_that_is_away_keeps_its_keys_and_begins_no_sign_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuing(lambda: NOW) as issuer:
        house = ConsoleHouse(tmp_path, issuers=[issuer.settings()])
        assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
    Clock(monkeypatch).passes(7200)
    assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
    house.close()
    other = ConsoleHouse(tmp_path / "other", issuers=[issuer.settings()])
    for _ in range(2):
        answer = await exchanged(other, issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.json["error_description"]
        answer = await other.call("GET", WHO, token=issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.error["message"]
        assert (await Browser(other).sign_in(token=issuer.id_token(now=NOW))).status == 503
    monkeypatch.setattr("trainshed.serve.issuers._read", None)
    assert (await exchanged(other, issuer.id_token(now=NOW))).status == 503, "asked a moment ago"
    other.close()


@pytest.mark.parametrize("keys", ["https://sso.example:99999", "https://sso..example"])
async def test_an_issuer_with_an_address_that_is_none_is_read_once(
    house: ConsoleHouse, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setattr(issuer, "published", lambda: {"issuer": issuer.address, "jwks_uri": keys})
    for _ in range(2):
        answer = await house.call("GET", WHO, token=issuer.id_token(now=NOW))
        assert answer.status == 503 and "does not answer" in answer.error["message"]
    assert len(issuer.paths) == 1


NEAR = "127.0.0.1 127.1 0.0.0.0 [::1] [::ffff:127.0.0.1] localhost. console.localhost"
LINK_LOCAL = "169.254.169.254 2852039166 0xa9fea9fe [fe80::1] [fe80::1%25eth0]"


@pytest.mark.parametrize("near", [*NEAR.split(), *LINK_LOCAL.split()])
async def test_an_issuer_elsewhere_names_no_address_of_this_machine(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, near: str
) -> None:
    """Nor the link-local ones, at which clouds tell machines their secrets."""
    elsewhere = "https://sso.corp.example"
    published = {**issuer.published(), "issuer": elsewhere, "jwks_uri": f"https://{near}/"}

    async def asked(address: str, *_: object) -> tuple[int, bytes]:
        assert address.startswith(elsewhere)
        return 200, json.dumps(published).encode()

    monkeypatch.setattr("trainshed.serve.issuers._request", asked)
    house = ConsoleHouse(tmp_path, issuers=[issuer.settings(issuer=elsewhere)])
    answer = await house.call("GET", WHO, token=issuer.id_token(now=NOW, iss=elsewhere))
    assert answer.status == 503 and "does not publish data" in answer.error["message"]
    house.close()


async def test_an_issuer_that_answers_byte_by_byte_holds_nobody(
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
        house = ConsoleHouse(tmp_path, issuers=[ScriptedIssuer(address).settings()])
        async with asyncio.timeout(60):
            answer = await Browser(house).get("/login/with?issuer=Corp")
            await left.wait()
            refusal = (await house.call("GET", WHO, token="ya29.x")).error["message"]
    assert answer.status == 503 and "Corp does not answer" in text_of(answer)
    assert "Corp does not answer" in refusal
    house.close()


@pytest.mark.parametrize("age", [31, 7200])
async def test_nobody_waits_for_an_issuer_that_somebody_else_has_read(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    """Neither for another one, nor for new keys of their own, nor for old ones that are read again."""
    other = issuer.settings(name="Other", issuer="https://sso.corp.example")
    house = ConsoleHouse(tmp_path, issuers=[issuer.settings(), other])
    assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
    Clock(monkeypatch).passes(age)
    forged = [issuer.id_token(now=NOW, key=new_key("2"))]
    forged.append(issuer.id_token(now=NOW, iss=other.issuer))
    begun = asyncio.Queue[None]()

    async def read(*_: object) -> NoReturn:
        begun.put_nowait(None)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("trainshed.serve.issuers._read", read)
    waiting = [asyncio.create_task(exchanged(house, token)) for token in forged]
    for _ in waiting:
        await asyncio.wait_for(begun.get(), 60)
    async with asyncio.timeout(60):
        assert (await exchanged(house, issuer.id_token(now=NOW, jti="2"))).status == 200
    for task in waiting:
        task.cancel()
    house.close()


async def test_a_key_that_cannot_be_read_voids_no_other(
    house: ConsoleHouse,
    issuer: ScriptedIssuer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An issuer may publish keys of kinds that do not exist yet (RFC 7517, section 5)."""
    good = issuer.keys[0].as_dict(private=False)
    odd: list[Any] = [{**good, "n": "!"}, {"kty": "AKP", "use": "sig"}, {"kty": "EC"}, {}, None]
    keys = [*odd, {**good, "use": "enc", "n": 7}, good]
    monkeypatch.setattr(issuer, "jwks", lambda: {"keys": keys})
    assert (await house.call("GET", WHO, token=issuer.id_token(now=NOW))).status == 200
    [line] = [record.getMessage() for record in caplog.records if "keys" in record.getMessage()]
    assert line.startswith(f"Corp publishes {len(odd)} keys that cannot be read")
    monkeypatch.setattr(issuer, "jwks", lambda: {"keys": "none"})
    Clock(monkeypatch).passes(7200)
    await refused(house, issuer.id_token(now=NOW), "signed by no key")


def test_keys_that_take_seconds_to_read_are_not_read() -> None:
    private = {"kty": "RSA", "e": "AQAB", "n": "_" * 342, "d": "v" * 342}
    keys, faults = signing_keys({"keys": [{"kty": "oct", "k": "A"}, private] * 51})
    assert not keys.keys and len(faults) == 100
    assert all("it is no public key" in fault for fault in faults)
