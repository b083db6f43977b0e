"""Signing in by OpenID Connect (docs/team.md), against an issuer that answers over HTTP; and those who try to
get in by it who should not.

Over 600 lines: browsers, command lines and ID tokens are three ways into one session, with one house and one
issuer for all.
"""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jws

from tests.contract.api.grpc_house import GrpcHouse
from tests.contract.api.house import LOCATION, START, Answer, House
from tests.contract.console.browser import Browser, ConsoleHouse, text_of
from tests.contract.console.test_sessions import JOB
from tests.issuer import GCLOUD, ScriptedIssuer, issuing, new_key
from trainshed.access import sessions
from trainshed.access.account_tokens import SKEW
from trainshed.access.issuers import read_issuers
from trainshed.access.job_tokens import JobClaims
from trainshed.access.tokens import digest_of
from trainshed.core.errors import Unauthenticated
from trainshed.serve.signing_in import LIFETIME, SigningIn
from trainshed.store.audit import SOURCE

ANA = "ana@corp.example"
NOW = START // 10**9
JOBS = f"{LOCATION}/customJobs"
JOB_SERVICE = "google.cloud.aiplatform.v1.JobService"
WHO = "/trainshed/v1/whoami"


@pytest.fixture
def issuer() -> Iterator[ScriptedIssuer]:
    with issuing(lambda: NOW) as issuer:
        yield issuer


@pytest.fixture
async def house(tmp_path: Path, issuer: ScriptedIssuer) -> AsyncGenerator[ConsoleHouse]:
    house = ConsoleHouse(tmp_path, issuers=[issuer.settings(audiences=("gcloud", GCLOUD))])
    yield house
    house.close()


async def sent(browser: Browser, **query: str) -> str:
    """Where the browser is sent to sign in."""
    answer = await browser.get(f"/login/with?{urlencode({'issuer': 'Corp', **query})}")
    assert answer.status == 303, answer.body
    return answer.headers["location"]


def state_of(location: str) -> str:
    return parse_qs(urlsplit(location).query)["state"][0]


async def back(browser: Browser, state: str, code: str) -> Answer:
    return await browser.get(f"/login/back?{urlencode({'state': state, 'code': code})}")


async def signed_in(browser: Browser, issuer: ScriptedIssuer) -> Answer:
    location = await sent(browser, next="/team", mark="m")
    answer = await back(browser, state_of(location), issuer.signs_in(location))
    assert answer.status == 303, text_of(answer)
    link = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    return await browser.sign_in(code=link["code"], next=link["next"])


async def exchanged(house: ConsoleHouse, token: str) -> Answer:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
    }
    headers = [("content-type", "application/x-www-form-urlencoded")]
    return await house.call("POST", "/token", urlencode(form).encode(), token=None, headers=headers)


async def give(house: House, member: str) -> None:
    grant = {"role": "roles/aiplatform.viewer", "member": member, "project": "p1"}
    await house.result("POST", "/trainshed/v1/access:change", grant)


def in_base64(content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


# --- in a browser ---


async def test_a_person_signs_in_and_has_no_right_until_somebody_gives_one(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    browser = Browser(house)
    assert "Sign in with Corp" in text_of(await browser.get("/login"))
    assert (await signed_in(browser, issuer)).json["next"] == "/team"
    page = text_of(await browser.get("/team"))
    assert ANA in page and "You have no role yet" in page
    assert (await browser.get("/jobs?project=p1")).status == 403
    await give(house, f"user:{ANA}")
    assert (await browser.get("/jobs?project=p1")).status == 200
    [row] = (await house.result("GET", "/trainshed/v1/audit?project=-"))["entries"][1:]
    assert (row["who"], row["method"], row["detail"]) == (
        ANA,
        "trainshed.v1.Tokens.SignIn",
        {"by": "Corp"},
    )


async def test_the_code_is_worth_nothing_without_the_verifier(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    location = await sent(Browser(house))
    code = issuer.signs_in(location)
    begun = issuer.begun[code]
    await back(Browser(house), begun["state"], code)
    digest = hashlib.sha256(issuer.forms[-1]["code_verifier"].encode()).digest()
    assert begun["code_challenge"] == in_base64(digest)
    assert begun["code_challenge_method"] == "S256"


async def test_who_is_led_to_the_end_of_another_s_sign_in_is_asked_first(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    """Else somebody could sign a browser in as themselves, and be given what its owner does then."""
    thief, victim = Browser(house), Browser(house)
    location = await sent(thief, mark="theirs")
    answer = await back(victim, state_of(location), issuer.signs_in(location))
    for site in ("cross-site", "none"):
        page = await victim.get(answer.headers["location"], ("sec-fetch-site", site))
        html = page.body.decode()
        assert "data-now" not in html and 'data-mark="theirs"' in html
    assert "If it was not you who asked for it, leave this page." in text_of(page)
    assert victim.session == ""


async def test_a_sign_in_leads_to_no_other_site(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    for elsewhere in ("https://evil.example/", "//evil.example/", "/\\evil.example"):
        browser = Browser(house)
        location = await sent(browser, next=elsewhere)
        answer = await back(browser, state_of(location), issuer.signs_in(location))
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        assert (await browser.sign_in(code=query["code"][0], next=query["next"][0])).json[
            "next"
        ] == "/overview"


async def test_a_state_that_this_service_did_not_make_or_long_ago_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    location = await sent(Browser(house))
    code = issuer.signs_in(location)
    other = SigningIn([issuer.settings()], house.keeper, b"another key", lambda: "", house.now)
    forged = state_of(await other.begin("Corp", "/", ""))
    for state in (forged, "", state_of(location)[:-2], f"{state_of(location)}x"):
        assert (await back(Browser(house), state, code)).status == 401
    house.clock += 601 * 10**9
    assert "took too long" in text_of(await back(Browser(house), state_of(location), code))
    assert issuer.forms == [], "the code was shown to nobody"


async def test_an_id_token_of_another_sign_in_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    mine, theirs = await sent(Browser(house)), await sent(Browser(house))
    code = issuer.signs_in(mine)
    issuer.begun[code]["nonce"] = parse_qs(urlsplit(theirs).query)["nonce"][0]
    answer = await back(Browser(house), state_of(mine), code)
    assert answer.status == 401 and "not the answer to this sign-in" in text_of(answer)


async def test_a_code_is_good_once_and_a_refusal_is_told(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    location = await sent(Browser(house))
    code = issuer.signs_in(location)
    assert (await back(Browser(house), state_of(location), code)).status == 303
    assert "Corp refuses this sign-in" in text_of(
        await back(Browser(house), state_of(location), code)
    )
    page = await Browser(house).get("/login/back?error=access_denied&error_description=<b>No</b>")
    assert page.status == 401 and "<b>No</b>" not in page.body.decode()


_KEYCLOAK = {
    "auth_time": 1764000000,
    "jti": "4d2c3b7e-7f0d-4b57-9d3c-2f3f1b3f2a10",
    "typ": "ID",
    "azp": "trainshed-console",
    "sid": "a5b0c3f6-7e0d-4a57-8d3c-0f3f1b3f2a11",
    "acr": "1",
    "preferred_username": "ana",
    "given_name": "Ana",
    "groups": ["/ml-team", "/ml-team/vision"],
}
_DEX = {
    "sub": "CgNhbmESBGxkYXA",
    "name": "ana",
    "groups": ["corp:ml-team", "a b", 7, "x" * 300],
    "federated_claims": {"connector_id": "ldap", "user_id": "ana"},
}


@pytest.mark.parametrize(
    ("claims", "group"), [(_KEYCLOAK, "/ml-team/vision"), (_DEX, "corp:ml-team")]
)
async def test_groups_give_roles_and_a_deleted_token_ends_the_session(
    house: ConsoleHouse, issuer: ScriptedIssuer, claims: dict[str, Any], group: str
) -> None:
    """By the claims that Keycloak and Dex add to those of the standard, as their documentation has them."""
    await give(house, f"group:{group}")
    issuer.claims |= claims
    browser = Browser(house)
    await signed_in(browser, issuer)
    assert "roles/aiplatform.viewer" in text_of(await browser.get("/team"))
    assert (await browser.get("/jobs?project=p1")).status == 200
    await house.call("DELETE", f"/trainshed/v1/tokens/{ANA}")
    assert (await browser.get("/jobs?project=p1")).status == 303


async def test_what_is_not_in_the_id_token_is_asked_for_and_believed_of_its_person_alone(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    await give(house, "group:ml")
    everything, some = {"sub": "7", "groups": ["ml"], **issuer.claims}, dict(issuer.claims)
    for issuer.claims in ({}, some):
        issuer.userinfo = dict(everything)
        browser = Browser(house)
        await signed_in(browser, issuer)
        page = text_of(await browser.get("/team"))
        assert ANA in page and "roles/aiplatform.viewer" in page
    issuer.userinfo, issuer.claims = {**everything, "sub": "8"}, {}
    location = await sent(Browser(house))
    answer = await back(Browser(house), state_of(location), issuer.signs_in(location))
    assert answer.status == 401


VERIFIER = "v" * 64
CHALLENGE = in_base64(hashlib.sha256(VERIFIER.encode()).digest())
PAGE = f"/login/command-line?challenge={CHALLENGE}"


async def offered(browser: Browser) -> str:
    """The code that the page shows to a command line that began without a port."""
    return (await browser.post(PAGE)).body.decode().partition("<code>")[2].partition("</code>")[0]


async def redeemed(house: ConsoleHouse, code: str, verifier: str = VERIFIER) -> Answer:
    form = urlencode({"code": code, "verifier": verifier}).encode()
    headers = [("accept", "application/json")]
    return await house.call("POST", "/login/token", form, token=None, headers=headers)


async def test_a_code_gives_the_command_line_that_began_a_token_that_ends_with_the_sign_in(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    await give(house, "group:ml")
    issuer.claims["groups"] = ["ml"]
    browser = Browser(house)
    await signed_in(browser, issuer)
    house.clock += 3600 * 10**9
    code = await offered(browser)
    token = (await redeemed(house, code)).json["token"]
    assert (await house.call("GET", JOBS, token=token)).status == 200
    [row] = (await house.result("GET", "/trainshed/v1/audit?project=-"))["entries"][:1]
    assert (row["who"], row["method"]) == (ANA, "trainshed.v1.Tokens.CreateOwn")
    assert (await redeemed(house, code)).status == 401, "it is good once"
    code = await offered(browser)
    assert (await redeemed(house, code, "w" * 64)).status == 401
    assert (await redeemed(house, code)).status == 401, "who guesses has spoiled it"
    code = await offered(browser)
    house.clock += 15 * 60 * 10**9
    assert (await redeemed(house, code)).status == 401
    house.clock += (LIFETIME - 3600 - 15 * 60) * 10**9
    assert (await house.call("GET", JOBS, token=token)).status == 401


async def test_a_page_of_others_signs_in_no_command_line(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    browser = Browser(house)
    await signed_in(browser, issuer)
    for site in ("cross-site", "same-site"):
        origin = ("origin", "http://evil.example")
        assert (await browser.post(PAGE, origin, ("sec-fetch-site", site))).status == 403
    page = (await browser.get(PAGE)).body.decode()
    assert "If it was not you who ran it" in page and "<code>trainshed login" in page
    for query in ("", "?challenge=short", f"?challenge={CHALLENGE}&port=1%2F@evil.example"):
        assert (await browser.get(f"/login/command-line{query}")).status == 400
    stranger = await Browser(house).get(f"{PAGE}&port=99", ("accept", "text/html"))
    assert stranger.headers["location"].startswith("/login?next=%2Flogin%2Fcommand-line")


async def test_a_token_of_the_command_line_or_that_somebody_made_makes_no_others(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    """Who has stolen it would keep a copy when it is deleted. Those of command lines are few."""
    made = await house.result("POST", "/trainshed/v1/tokens", {"email": "bo@corp.example"})
    for token in (made["token"], house.token):
        answer = await house.call("POST", "/trainshed/v1/tokens:own", {}, token=token)
        assert answer.status == 400 and "you have one already" in answer.error["message"]
    browser = Browser(house)
    await signed_in(browser, issuer)
    tokens: list[str] = []
    for _ in range(21):
        house.clock += 10**9
        tokens.append((await redeemed(house, await offered(browser))).json["token"])
    answer = await house.call("POST", "/trainshed/v1/tokens:own", {}, token=tokens[-1])
    assert answer.status == 400
    known = (await house.result("GET", f"/trainshed/v1/tokens?email={ANA}"))["tokens"]
    assert len(known) == 21, "and that of the browser"
    path = "/trainshed/v1/whoami"
    states = [(await house.call("GET", path, token=token)).status for token in tokens]
    assert states == [401] + [200] * 20


async def test_nobody_drives_out_the_codes_and_sessions_of_others(
    house: ConsoleHouse, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST", 4)
    browser, guest = Browser(house), Browser(house)
    await signed_in(browser, issuer)
    code = await offered(browser)
    token = (await redeemed(house, await offered(browser))).json["token"]
    link = house.sessions.link_code(digest_of(token))
    for _ in range(8):
        house.sessions.offer(house.token, CHALLENGE)
        house.sessions.link_code(digest_of(house.token))
        await house.sessions.by_token(house.token)
    assert (await redeemed(house, code)).status == 200
    assert (await browser.get("/team")).status == 200
    assert (await guest.sign_in(code=link)).status == 200


# --- with an ID token ---


async def test_an_id_token_is_exchanged_for_itself_for_as_long_as_it_is_good(
    house: ConsoleHouse, issuer: ScriptedIssuer
) -> None:
    """As `gcloud auth print-identity-token` prints one, and Google's libraries exchange them."""
    house.clock += 20 * 10**9
    token = issuer.id_token(now=NOW, aud="gcloud", email="Ana@Corp.Example")
    answer = await exchanged(house, token)
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    assert (answer.json["access_token"], answer.json["expires_in"]) == (token, 600 + SKEW - 20)
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
    begun = SigningIn(left, house.keeper, b"", str, house.now)
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
        for span, times in ((0, 1), (170, 1), (11, 2)):
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
        ({"aud": "x", "azp": "x"}, f"made for x, and only those for {GCLOUD} and gcloud and tr"),
        ({"azp": "x"}, f"made for {GCLOUD} and x"),
        ({"exp": str(NOW)}, "has expired"),
        ({"exp": str(NOW + 3661)}, "valid for more than an hour"),
        ({"exp": "1e9"}, "has expired"),
        ({"email_verified": "false"}, "has verified the address"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "no address of a person"),
    ],
)
async def test_an_access_token_that_proves_nothing_here_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer, changes: dict[str, str], why: str
) -> None:
    await refused(house, issuer.access_token(NOW, **changes), why)


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
        await house.signing_in.authenticate(f"Bearer {token}")

    monkeypatch.setattr("trainshed.serve.signing_in._asked", asked)
    monkeypatch.setattr("trainshed.serve.signing_in._MOST_KNOWN", 22)
    await show(known, "")
    flood = [asyncio.create_task(show(f"ya29.{at % 20}", f"2001:db8::{at}")) for at in range(60)]
    await asyncio.gather(*(asyncio.create_task(show(new, f"192.0.2.{at}")) for at in range(20)))
    assert not all(task.done() for task in flood)
    flood += [asyncio.create_task(show("ya29.x", "2001:db8::"))]
    refusals = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Unauthenticated}
    await show(known, "")
    assert [questions[token] for token in (known, "ya29.7")] == [1, 1]


async def refused(house: ConsoleHouse, token: str, why: str) -> None:
    """A token of an issuer is neither exchanged nor taken."""
    answer = await exchanged(house, token)
    assert answer.status == 400 and why in answer.json["error_description"]
    answer = await house.call("GET", WHO, token=token)
    assert answer.status == 401 and why in answer.error["message"]


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
        (by_nobody, "not known here"),
        (within_another, "nor by an issuer"),
        (partial(headed, header={"alg": "RS256", "kid": "1", "crit": [["b64"]]}), "by no key"),
        (partial(headed, header={"alg": "HS256", "crit": [["b64"]]}), "by no key"),
        (deep, "nor by an issuer"),
    ],
)
async def test_a_forged_id_token_is_refused(
    house: ConsoleHouse, issuer: ScriptedIssuer, made: Callable[[ScriptedIssuer], str], why: str
) -> None:
    await refused(house, made(issuer), why)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "nor by an issuer"),
        ({"aud": "another-client"}, "not for a client"),
        ({"aud": ["gcloud", "x"], "azp": "x"}, "not for a client"),
        ({"aud": ["gcloud", "x"]}, "not for a client"),
        ({"aud": ["gcloud", "x"], "azp": ["gcloud"]}, "not for a client"),
        ({"exp": NOW - 61}, "expired"),
        ({"iat": NOW + 120}, "not valid"),
        ({"nbf": NOW + 120}, "not valid"),
        ({"exp": None}, "not valid"),
        ({"exp": 1e300}, "no times"),
        ({"email_verified": False}, "has verified the address"),
        ({"email_verified": "true"}, "has verified the address"),
        ({"email": "owner@trainshed.local"}, "no address of a person"),
        ({"email": "nightly@p1.iam.gserviceaccount.com"}, "no address of a person"),
        ({"email": "a@b@c"}, "no address of a person"),
        ({"email": "ana\0@corp.example"}, "no address of a person"),
        ({"email": "ana\N{RIGHT-TO-LEFT OVERRIDE}@corp.example"}, "no address of a person"),
        ({"email": "mi\N{KELVIN SIGN}e@corp.example"}, "no address of a person"),
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
        issuers = [issuer.settings(domains=("corp.example",)), evil.settings(name="Evil")]
        house = ConsoleHouse(tmp_path, issuers=issuers)
        assert (await exchanged(house, issuer.id_token(now=NOW))).status == 200
        for token, why in (
            (issuer.id_token(now=NOW, email="eve@corp.example.evil.example"), "of corp.example"),
            (evil.id_token(now=NOW, iss=issuer.address), "signed by no key"),
        ):
            assert why in (await exchanged(house, token)).json["error_description"]
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
    with issuing(lambda: NOW, port=int(issuer.address.rpartition(":")[2])):
        assert (await exchanged(other, issuer.id_token(now=NOW))).status == 503, (
            "asked a moment ago"
        )
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

    monkeypatch.setattr("trainshed.serve.signing_in._asked", asked)
    house = ConsoleHouse(tmp_path, issuers=[issuer.settings(issuer=elsewhere)])
    answer = await house.call("GET", WHO, token=issuer.id_token(now=NOW, iss=elsewhere))
    assert answer.status == 503 and "publishes no facts" in answer.error["message"]
    house.close()


async def test_an_issuer_that_answers_byte_by_byte_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.serve.signing_in._TIMEOUT", 0.2)
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
    assert answer.status == 503 and "no whole answer within 0.2 s" in text_of(answer)
    assert "no whole answer within 0.2 s" in refusal
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

    monkeypatch.setattr("trainshed.serve.signing_in._read", read)
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


# --- machines ---

ROBOT = "nightly@p1.iam.gserviceaccount.com"
MAIN = "repo:corp/vision:ref:refs/heads/main"
_MACHINES = {
    "github": {"sub": MAIN, "repository": "corp/vision", "event_name": "push"},
    "gitlab": {"sub": "project_path:corp/vision:ref_type:tag:ref:v1.2", "user_email": ANA},
    "kubernetes": {"sub": "system:serviceaccount:ml:trainer", "aud": ["https://ci.example"]},
}
_ACCOUNTS = {
    MAIN: ROBOT,
    "repo:corp/vision:ref:refs/tags/*": ROBOT,
    "project_path:corp/vision:*": ROBOT,
    "system:serviceaccount:ml:trainer": ROBOT,
    # The longest that fits counts.
    "repo:corp/*": "nobody@p1.iam.gserviceaccount.com",
}


@pytest.fixture
async def plant(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ConsoleHouse]:
    """A service that an issuer without people tells of machines."""
    published = {"issuer": issuer.address, "jwks_uri": f"{issuer.address}/keys"}
    monkeypatch.setattr(issuer, "published", lambda: published)
    audience = "https://ci.example"
    issuer.claims = {"aud": audience}
    table = issuer.settings(client_id="", audiences=(audience,), accounts=_ACCOUNTS)
    house = ConsoleHouse(tmp_path, issuers=[table])
    await house.result("POST", "/v1/projects/p1/serviceAccounts", {"accountId": "nightly"})
    member, role = f"serviceAccount:{ROBOT}", "roles/aiplatform.user"
    grant = {"role": role, "project": "p1", "member": member}
    await house.result("POST", "/trainshed/v1/access:change", grant)
    yield house
    house.close()


@pytest.mark.parametrize("claims", _MACHINES.values(), ids=_MACHINES)
async def test_an_id_token_of_a_machine_speaks_for_the_account_of_its_subject(
    plant: ConsoleHouse, issuer: ScriptedIssuer, claims: dict[str, Any]
) -> None:
    """The claims as GitHub Actions, GitLab and Kubernetes document them; and the audit names the subject."""
    token = issuer.id_token(now=NOW, **claims)
    assert (await exchanged(plant, token)).json["access_token"] == token
    assert (await plant.call("POST", JOBS, JOB, token=token)).status == 200
    [row] = (await plant.result("GET", "/trainshed/v1/audit?project=p1"))["entries"][:1]
    assert (row["who"], row["actingAs"]) == (claims["sub"], ROBOT)
    browser, known = Browser(plant), plant.tokens.issuers
    await browser.sign_in(token=token)
    for marks, status in (([f"{issuer.address}#"], 303), (known, 200)):
        plant.tokens.issuers = marks
        assert (await browser.get("/team")).status == status, "it ends with its entry"
    account = f"/v1/projects/p1/serviceAccounts/{ROBOT}"
    await plant.call("POST", f"{account}:disable", {})
    await refused(plant, token, "is disabled")
    await plant.call("POST", f"{account}:enable", {})
    assert (await plant.call("GET", WHO, token=token)).json["email"] == ROBOT
    program, _ = plant.jobs.mint(JobClaims(1, 1, "workerpool0-0", "p1", ROBOT))
    path = f"/trainshed/v1/tokens/{ROBOT}"
    assert (await plant.call("DELETE", path, token=program)).status == 404
    await plant.result("DELETE", path)
    await refused(plant, token, "were revoked after this one")
    await plant.call("DELETE", account)
    plant.clock += 61 * 10**9
    await refused(plant, issuer.id_token(now=NOW + 61, **claims), "was deleted")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "repo:corp/vision:pull_request"}, "nobody@p1.iam.gserviceaccount.com was deleted"),
        ({"sub": "repo:evil/vision:ref:refs/heads/main"}, "no account for the subject"),
        ({"sub": "repo:corp-evil/vision:ref:refs/heads/main"}, "no account for the subject"),
        ({"sub": "project_path:corp/vision-evil:ref:v1"}, "no account for the subject"),
        ({"sub": f"{MAIN}2"}, "nobody@p1.iam.gserviceaccount.com was deleted"),
        ({"sub": ""}, "no account for the subject"),
        ({"sub": None}, "not valid"),
        ({"sub": [MAIN]}, "not valid"),
        ({"sub": MAIN, "aud": "https://other.example"}, "not for a client"),
        ({"sub": MAIN, "aud": []}, "not valid"),
        ({"sub": "7", "email": ROBOT, "email_verified": True}, "no address of a person"),
    ],
)
async def test_no_other_subject_speaks_for_an_account(
    plant: ConsoleHouse, issuer: ScriptedIssuer, claims: dict[str, Any], why: str
) -> None:
    await refused(plant, issuer.id_token(now=NOW, **claims), why)


async def test_in_a_browser_there_are_people_alone(
    plant: ConsoleHouse, tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Browser(plant)
    assert "Corp" not in text_of(await stranger.get("/login"))
    assert "no such issuer" in text_of(await stranger.get("/login/with?issuer=Corp"))
    monkeypatch.undo()
    issuer.claims = {"email": ANA, "email_verified": True}
    table = issuer.settings(accounts={"7": ROBOT})
    house = ConsoleHouse(tmp_path / "other", issuers=[table])
    browser = Browser(house)
    await signed_in(browser, issuer)
    assert ANA in text_of(await browser.get("/team"))
    house.close()


class Clock:
    """The monotonic clock of the service, which is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = 0.0
        import time

        real = time.monotonic
        monkeypatch.setattr("trainshed.serve.signing_in.time.monotonic", lambda: real() + self._at)

    def passes(self, seconds: float) -> None:
        self._at += seconds


# --- settings ---


def test_a_table_names_everything_that_is_wrong_with_it() -> None:
    good: dict[str, Any] = {"name": "Corp", "issuer": "https://sso.corp.example", "client_id": "x"}
    assert read_issuers([good])[0].groups_claim == "groups"
    bad = [
        {**good, "issuer": "http://sso.corp.example", "name": "", "domains": ["Corp"]},
        {**good, "more": 1},
        {"name": "CI", "issuer": "https://ci.example"},
    ]
    for subject in ("", "*", "repo:*", "repo:corp*", "repo:corp/x:*:main", "repo:/*"):
        bad.append({**good, "accounts": {subject: ROBOT}})
    bad.append({**good, "accounts": {"repo:corp/x:*": ANA}})
    with pytest.raises(ValueError, match="oidc") as wrong:
        read_issuers([*bad, good, good])
    faults = str(wrong.value)
    words = ("oidc[0].name", "oidc[0].issuer", "oidc[0].domains", "oidc[1]", "oidc[2].client_id")
    for word in (*words, "two tables", *(f"oidc[{number}].accounts: " for number in range(3, 10))):
        assert word in faults
