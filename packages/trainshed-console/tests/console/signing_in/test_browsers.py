"""Sign-in with OpenID Connect in a browser and for the command line (docs/team.md), and attacks on it."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import pytest

from tests.console.browser import Browser, ConsoleService, text_of
from tests.console.signing_in.conftest import (
    ANA,
    JOBS,
    NOW,
    base64url,
    grant_viewer,
    redirect_to_issuer,
    return_from_issuer,
    sign_in_with_issuer,
    state_of,
)
from tests.contract.api.api_service import Answer
from tests.issuer import ScriptedIssuer, issuing
from trainshed.access.tokens import digest_of
from trainshed_console import sessions
from trainshed_console.signing_in import LIFETIME, SigningIn


async def test_new_openid_user_has_no_permissions_until_a_role_is_granted(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    browser = Browser(service)
    assert "Sign in with Corp" in text_of(await browser.get("/login"))
    assert (await sign_in_with_issuer(browser, issuer)).json["next"] == "/team"
    page = text_of(await browser.get("/team"))
    assert ANA in page and "You have no role yet" in page
    assert (await browser.get("/jobs?project=p1")).status == 403
    await grant_viewer(service, f"user:{ANA}")
    assert (await browser.get("/jobs?project=p1")).status == 200
    [session, row] = (await service.result("GET", "/trainshed/v1/audit?project=-"))["entries"][1:]
    assert (session["who"], session["detail"]) == (ANA, {"by": "link"})
    assert (row["who"], row["method"], row["detail"]) == (ANA, "trainshed.v1.Tokens.SignIn", {"by": "Corp"})


async def test_authorization_code_is_bound_to_the_pkce_verifier(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    location = await redirect_to_issuer(Browser(service))
    code = issuer.signs_in(location)
    begun = issuer.begun[code]
    await return_from_issuer(Browser(service), begun["state"], code)
    digest = hashlib.sha256(issuer.forms[-1]["code_verifier"].encode()).digest()
    assert begun["code_challenge"] == base64url(digest)
    assert begun["code_challenge_method"] == "S256"


async def test_sign_in_callback_from_another_browser_requires_confirmation(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    """Login CSRF: an attacker signs a victim's browser in as the attacker, and sees the victim's later
    actions."""
    thief, victim = Browser(service), Browser(service)
    location = await redirect_to_issuer(thief, mark="theirs")
    answer = await return_from_issuer(victim, state_of(location), issuer.signs_in(location))
    for site in ("cross-site", "none"):
        page = await victim.get(answer.headers["location"], ("sec-fetch-site", site))
        html = page.body.decode()
        assert "data-now" not in html and 'data-mark="theirs"' in html
    assert "If you did not request this link, close this page." in text_of(page)
    assert victim.session == ""


async def test_openid_sign_in_is_not_an_open_redirect(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    for elsewhere in ("https://evil.example/", "//evil.example/", "/\\evil.example"):
        browser = Browser(service)
        location = await redirect_to_issuer(browser, next=elsewhere)
        answer = await return_from_issuer(browser, state_of(location), issuer.signs_in(location))
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        assert (await browser.sign_in(code=query["code"][0], next=query["next"][0])).json[
            "next"
        ] == "/overview"


async def test_forged_or_expired_openid_state_is_rejected(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    location = await redirect_to_issuer(Browser(service))
    code = issuer.signs_in(location)
    other = SigningIn(service.issuers, service.keeper, b"another key, which no service has", "", service.now)
    forged = state_of(await other.start("Corp", "/", ""))
    for state in (forged, "", state_of(location)[:-2], f"{state_of(location)}x"):
        assert (await return_from_issuer(Browser(service), state, code)).status == 401
    service.clock += 601 * 10**9
    assert "took too long" in text_of(await return_from_issuer(Browser(service), state_of(location), code))
    assert issuer.forms == [], "the code was not sent to any issuer"


async def test_id_token_with_a_foreign_nonce_is_rejected(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    mine, theirs = (await redirect_to_issuer(Browser(service)), await redirect_to_issuer(Browser(service)))
    code = issuer.signs_in(mine)
    issuer.begun[code]["nonce"] = parse_qs(urlsplit(theirs).query)["nonce"][0]
    answer = await return_from_issuer(Browser(service), state_of(mine), code)
    assert answer.status == 401 and "belongs to another sign-in" in text_of(answer)


async def test_authorization_code_is_not_sent_to_another_issuer(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    """Mix-up attack: another issuer redirects the browser. The `iss` parameter reveals it (RFC 9207)."""
    location = await redirect_to_issuer(Browser(service))
    query = {"state": state_of(location), "code": issuer.signs_in(location)}
    for sender, status in (("https://honest.example", 401), (issuer.address, 303)):
        answer = await Browser(service).get(f"/login/back?{urlencode({**query, 'iss': sender})}")
        assert (answer.status, len(issuer.forms)) == (status, int(status == 303))


async def test_mix_up_attack_by_a_malicious_issuer_gets_no_authorization_code(tmp_path: Path) -> None:
    """RFC 9207: a malicious issuer redirects a browser, which started a sign-in there, to an honest
    issuer."""
    with issuing(lambda: NOW) as honest, issuing(lambda: NOW) as malicious:
        tables = [honest.settings(), malicious.settings(name="Evil Corp")]
        service = ConsoleService(tmp_path, issuers=tables)
        begun = await Browser(service).get("/login/with?issuer=Evil+Corp")
        state = state_of(begun.headers["location"])
        right = parse_qs(urlsplit(await redirect_to_issuer(Browser(service))).query)["redirect_uri"][0]
        assert right.endswith("/login/back/Corp")
        assert "Evil%20Corp" in unquote(begun.headers["location"])
        code = honest.signs_in(await redirect_to_issuer(Browser(service)))
        query = urlencode({"state": state, "code": code})
        for path in ("/login/back", "/login/back/Corp"):
            answer = await Browser(service).get(f"{path}?{query}")
            assert answer.status == 401 and malicious.forms == [], path
        location = await redirect_to_issuer(Browser(service))
        query = urlencode({"state": state_of(location), "code": honest.signs_in(location)})
        assert (await Browser(service).get(f"/login/back/Corp?{query}")).status == 303
        service.close()


async def test_iss_parameter_is_required_if_the_issuer_announces_this_parameter(
    service: ConsoleService, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = issuer.metadata() | {"authorization_response_iss_parameter_supported": True}
    monkeypatch.setattr(issuer, "metadata", lambda: published)
    location = await redirect_to_issuer(Browser(service))
    answer = await return_from_issuer(Browser(service), state_of(location), issuer.signs_in(location))
    assert answer.status == 401 and issuer.forms == []


async def test_authorization_code_is_valid_once_and_errors_are_escaped(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    location = await redirect_to_issuer(Browser(service))
    code = issuer.signs_in(location)
    assert (await return_from_issuer(Browser(service), state_of(location), code)).status == 303
    assert "Corp rejected this sign-in" in text_of(
        await return_from_issuer(Browser(service), state_of(location), code)
    )
    page = await Browser(service).get("/login/back?error=access_denied&error_description=<b>No</b>")
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


@pytest.mark.parametrize(("claims", "group"), [(_KEYCLOAK, "/ml-team/vision"), (_DEX, "corp:ml-team")])
async def test_issuer_groups_grant_roles_and_token_deletion_ends_the_session(
    service: ConsoleService, issuer: ScriptedIssuer, claims: dict[str, Any], group: str
) -> None:
    """The claims are those that Keycloak and Dex document in addition to the standard."""
    await grant_viewer(service, f"group:{group}")
    issuer.claims |= claims
    browser = Browser(service)
    await sign_in_with_issuer(browser, issuer)
    assert "roles/aiplatform.viewer" in text_of(await browser.get("/team"))
    assert (await browser.get("/jobs?project=p1")).status == 200
    await service.call("DELETE", f"/trainshed/v1/tokens/{ANA}")
    assert (await browser.get("/jobs?project=p1")).status == 303


async def test_userinfo_claims_are_used_only_if_their_subject_equals_that_of_the_id_token(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    await grant_viewer(service, "group:ml")
    everything, some = {"sub": "7", "groups": ["ml"], **issuer.claims}, dict(issuer.claims)
    for issuer.claims in ({}, some):
        issuer.userinfo = dict(everything)
        browser = Browser(service)
        await sign_in_with_issuer(browser, issuer)
        page = text_of(await browser.get("/team"))
        assert ANA in page and "roles/aiplatform.viewer" in page
    issuer.userinfo, issuer.claims = {**everything, "sub": "8"}, {}
    location = await redirect_to_issuer(Browser(service))
    answer = await return_from_issuer(Browser(service), state_of(location), issuer.signs_in(location))
    assert answer.status == 401


VERIFIER = "v" * 64
CHALLENGE = base64url(hashlib.sha256(VERIFIER.encode()).digest())
PAGE = f"/login/command-line?challenge={CHALLENGE}"


async def request_code(browser: Browser) -> str:
    """Return the code that the page shows for a command line without a local port."""
    return (await browser.post(PAGE)).body.decode().partition("<code>")[2].partition("</code>")[0]


async def redeem_code(service: ConsoleService, code: str, verifier: str = VERIFIER) -> Answer:
    form = urlencode({"code": code, "verifier": verifier}).encode()
    headers = [("accept", "application/json")]
    return await service.call("POST", "/login/token", form, token=None, headers=headers)


async def test_command_line_token_expires_with_the_browser_sign_in(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    await grant_viewer(service, "group:ml")
    issuer.claims["groups"] = ["ml"]
    browser = Browser(service)
    await sign_in_with_issuer(browser, issuer)
    service.clock += 3600 * 10**9
    code = await request_code(browser)
    token = (await redeem_code(service, code)).json["token"]
    assert (await service.call("GET", JOBS, token=token)).status == 200
    [row] = (await service.result("GET", "/trainshed/v1/audit?project=-"))["entries"][:1]
    assert (row["who"], row["method"]) == (ANA, "trainshed.v1.Tokens.CreateOwn")
    assert (await redeem_code(service, code)).status == 401, "a code is valid once"
    code = await request_code(browser)
    assert (await redeem_code(service, code, "w" * 64)).status == 401
    assert (await redeem_code(service, code)).status == 401, "a wrong verifier invalidates the code"
    code = await request_code(browser)
    service.clock += 15 * 60 * 10**9
    assert (await redeem_code(service, code)).status == 401
    service.clock += (LIFETIME - 3600 - 15 * 60) * 10**9
    assert (await service.call("GET", JOBS, token=token)).status == 401


async def test_csrf_cannot_sign_in_a_command_line(service: ConsoleService, issuer: ScriptedIssuer) -> None:
    browser = Browser(service)
    await sign_in_with_issuer(browser, issuer)
    for site in ("cross-site", "same-site"):
        origin = ("origin", "http://evil.example")
        assert (await browser.post(PAGE, origin, ("sec-fetch-site", site))).status == 403
    page = (await browser.get(PAGE)).body.decode()
    assert "If you did not run this command" in page and "<code>trainshed login" in page
    for query in ("", "?challenge=short", f"?challenge={CHALLENGE}&port=1%2F@evil.example"):
        assert (await browser.get(f"/login/command-line{query}")).status == 400
    stranger = await Browser(service).get(f"{PAGE}&port=99", ("accept", "text/html"))
    assert stranger.headers["location"].startswith("/login?next=%2Flogin%2Fcommand-line")


async def test_command_line_and_api_tokens_cannot_create_tokens(
    service: ConsoleService, issuer: ScriptedIssuer
) -> None:
    """A thief could otherwise keep access after the deletion of a stolen token. Command line tokens are
    limited."""
    made = await service.result("POST", "/trainshed/v1/tokens", {"email": "bo@corp.example"})
    for token in (made["token"], service.token):
        answer = await service.call("POST", "/trainshed/v1/tokens:own", {}, token=token)
        assert answer.status == 400 and "You already have one" in answer.error["message"]
    browser = Browser(service)
    await sign_in_with_issuer(browser, issuer)
    tokens: list[str] = []
    for _ in range(21):
        service.clock += 10**9
        tokens.append((await redeem_code(service, await request_code(browser))).json["token"])
    answer = await service.call("POST", "/trainshed/v1/tokens:own", {}, token=tokens[-1])
    assert answer.status == 400
    known = (await service.result("GET", f"/trainshed/v1/tokens?email={ANA}"))["tokens"]
    assert len(known) == 21, "including the token of the browser"
    path = "/trainshed/v1/whoami"
    states = [(await service.call("GET", path, token=token)).status for token in tokens]
    assert states == [401] + [200] * 20


async def test_many_sign_ins_do_not_evict_sessions_of_other_users(
    service: ConsoleService, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 4)
    browser, guest = Browser(service), Browser(service)
    await sign_in_with_issuer(browser, issuer)
    code = await request_code(browser)
    token = (await redeem_code(service, await request_code(browser))).json["token"]
    link = service.sessions.link_code(digest_of(token))
    for _ in range(8):
        service.sessions.offer(service.token, CHALLENGE)
        service.sessions.link_code(digest_of(service.token))
        await service.sessions.by_token(service.token)
    assert (await redeem_code(service, code)).status == 200
    assert (await browser.get("/team")).status == 200
    assert (await guest.sign_in(code=link)).status == 200
