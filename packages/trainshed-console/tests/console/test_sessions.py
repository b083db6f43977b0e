"""Sessions of the console: sign-in, expiry, CSRF, session fixation and response headers (docs/adr/0070)."""

import json
import re
from html import unescape
from unittest.mock import patch
from urllib.parse import parse_qsl

import pytest
from msgspec.structs import replace

from tests.console.browser import ADDRESS, Browser, ConsoleService, text_of
from tests.contract.api.fake_shells import FakeShells, connect
from tests.people import add_user
from tests.unit.specs_requests import container, custom_job
from trainshed.access import authentication_limits
from trainshed.access.book import AccessBook
from trainshed.api.calls.links import Links
from trainshed.core.errors import Unavailable
from trainshed.httpd.connections import SET_HOLDER
from trainshed_console.routes import ACTIONS
from trainshed_console.sessions import LIFETIME, LINK_LIFETIME

JOB = custom_job(container(command=["true"])) | {"displayName": "first"}


async def test_console_pages_require_a_sign_in(service: ConsoleService) -> None:
    stranger = Browser(service)
    for path in ("/", "/jobs", "/jobs/1", "/jobs/1/logs"):
        answer = await stranger.get(path)
        assert (answer.status, answer.headers["location"][:12]) == (303, "/login?next=")
    for path in ("/jobs/1/lines", "/jobs/1/lines/new"):
        assert (await stranger.get(path, ("accept", "application/json"))).status in (303, 401)
    for path in ("/events/jobs", "/events/jobs/1/logs"):
        answer = await stranger.get(path)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert b"You are signed out" in answer.body
    assert (await stranger.post("/jobs/1/cancel")).status == 401


async def test_browser_sign_ins_are_audited(service: ConsoleService) -> None:
    ana = add_user(service.tokens, "ana@corp.example", project="p1")
    await Browser(service).sign_in(token=ana)
    await Browser(service).open(service.link())
    assert (await Browser(service).sign_in(token="x" * 43)).status == 401
    entries = (await service.result("GET", "/trainshed/v1/audit?project=-"))["entries"]
    sign_ins = [entry for entry in entries if entry["method"] == "trainshed.v1.Tokens.SignIn"]
    assert [(entry["who"], entry["detail"]) for entry in sign_ins] == [
        ("owner@trainshed.local", {"by": "link"}),
        ("ana@corp.example", {"by": "token"}),
    ]


async def test_sign_in_that_cannot_be_audited_is_rejected(service: ConsoleService) -> None:
    browser, full = Browser(service), Unavailable("the disk is full")
    with patch.object(service.store.access, "change", side_effect=full):
        assert (await browser.open(service.link())).status == 503
    assert (await browser.get("/jobs")).status == 303, "no session was created"


async def test_sign_in_accepts_only_valid_tokens(service: ConsoleService) -> None:
    browser = Browser(service)
    refused = await browser.sign_in(token="nonsense")
    assert refused.status == 401
    assert "not known to this service" in refused.error["message"]
    assert "nonsense" not in refused.body.decode()
    welcome = await browser.sign_in(token=f" {service.token}\n")
    assert welcome.json == {"session": browser.session, "next": "/overview"}
    assert "no-store" in welcome.headers["cache-control"]
    assert (await browser.get("/")).status == 200


async def test_session_fixation_is_prevented_by_a_new_session_at_sign_in(service: ConsoleService) -> None:
    """An attacker who planted a known session in the browser loses access at the user's sign-in."""
    browser, other = Browser(service), Browser(service)
    await browser.sign_in(token=add_user(service.tokens, "eve@corp.example"))
    other.session = browser.session
    assert (await other.get("/")).status == 200
    await browser.sign_in(token=service.token)
    assert (await other.get("/")).status == 303
    assert (await browser.get("/")).status == 200


async def test_shells_and_pages_opened_by_a_browser_end_with_its_session(service: ConsoleService) -> None:
    """This covers a shell, a job's web page and TensorBoard. Another user's shell continues."""
    shells, links = FakeShells(), Links(b"key", ADDRESS, service.now, "localhost")
    shells.answer = b"HTTP/1.1 200 OK\r\n\r\nevent: here\ndata: 1\n\n"
    service.services = replace(service.services, shells=shells, allows_shells=True, links=links)
    service.new_console()
    output = {"outputUriPrefix": "gs://bucket/job"}
    job = custom_job(enableWebAccess=True, baseOutputDirectory=output)
    job["labels"] = {"trainshed-ports": "page"}
    made = await service.result("POST", "/v1/projects/p1/locations/us-central1/customJobs", job)
    await service.run(made["name"])
    service.viewers.written.add("gs://bucket/job/logs")
    token = add_user(service.tokens, "ana@corp.example", "roles/aiplatform.user", "p1")
    tickets: list[str] = []
    for browser in (other := Browser(service), first := Browser(service)):
        await browser.sign_in(token=token)
        html = unescape((await browser.get("/jobs/1000")).body.decode())
        fragments = re.findall(r'/(?:shell|tensorboard)/#([^"]+)', html)
        shell_link, board_link = (dict(parse_qsl(fragment)) for fragment in fragments)
        ticket = await service.result("POST", "/shell/ticket", shell_link, token=None)
        tickets.append(ticket["token"])
    opened = await service.call("POST", "/tensorboard/open", board_link, token=None)
    board = f"/tensorboard/{json.loads(opened.body.splitlines()[-1])['path']}"
    led = (await first.get("/jobs/1000/ports/page")).headers["location"]
    host, way = ("host", led.split("/")[2]), led.split("/", 3)[3]
    let_in = await service.call("GET", f"/{way}", token=None, headers=[host])
    page = [host, ("cookie", let_in.headers["set-cookie"].partition(";")[0])]
    async with (
        connect(service.app) as theirs,
        connect(service.app) as shell,
        service.events("/", page) as stream,
    ):
        for socket, ticket in zip((theirs, shell), tickets, strict=True):
            socket.send_text(token=ticket)
            assert "title" in await socket.next()
        assert await stream.next("here") == 1
        assert (await service.call("GET", board, token=None)).status == 200
        assert (await first.post("/logout")).status == 303
        assert "signed out" in (await shell.next())["error"]
        with pytest.raises(AssertionError, match="the stream has ended"):
            await stream.next("here")
        theirs.type(b"ls")
        assert await theirs.next() == b"ls"
    service.new_console()
    for path, sent in (("/", page), (board, page[:0])):
        assert (await service.call("GET", path, token=None, headers=sent)).status == 403
    assert (await other.get("/")).status == 200, "sessions survive a restart of the service"


async def test_connections_count_toward_the_limit_of_their_user(service: ConsoleService) -> None:
    """Otherwise the event streams of one user could block all other users."""
    browser, holders = Browser(service), set[str]()
    await browser.sign_in(token=add_user(service.tokens, "eve@corp.example"))
    SET_HOLDER.set(holders.add)
    await browser.get("/")
    assert holders == {"eve@corp.example"}


async def test_console_uses_no_cookies(service: ConsoleService, browser: Browser) -> None:
    """Browsers send cookies to all ports of a host, so programs on other ports could read them."""
    for path in ("/", "/login", service.link().removeprefix(ADDRESS)):
        assert "set-cookie" not in (await browser.get(path)).headers
    assert "set-cookie" not in (await browser.sign_in(token=service.token)).headers
    value, browser.session = browser.session, ""
    for cookie in (f"trainshed_session={value}", f"session={value}"):
        assert (await browser.get("/", ("cookie", cookie))).status == 303


async def test_only_the_sign_in_page_sends_a_basic_auth_challenge(
    service: ConsoleService, browser: Browser
) -> None:
    """Another site could otherwise plant its own session (session fixation). No other response may cause a
    password dialog of the browser."""
    stranger, mark = Browser(service), ("x-trainshed-sign-in", "1")
    request = await stranger.get("/signed-in", mark)
    assert (request.status, request.headers["www-authenticate"]) == (401, 'Basic realm="Trainshed"')
    for path in ("/signed-in", "/", "/jobs/1/lines", "/trainshed/v1/status"):
        answer = await stranger.get(path, ("accept", "application/json"))
        assert not answer.headers.get("www-authenticate", "").startswith("Basic"), path
    assert (await browser.get("/signed-in", mark)).status == 204


@pytest.mark.parametrize("text", ["Basic", "Basic x", "Basic \xff", "Basic Og==", "Digest x", "basic /w=="])
async def test_malformed_authorization_header_counts_as_signed_out(
    service: ConsoleService, text: str
) -> None:
    answer = await Browser(service).get("/", ("authorization", text))
    assert answer.headers["location"].startswith("/login")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("/jobs/7?x=1", "/jobs/7?x=1"),
        ("//evil.example", "/overview"),
        ("https://evil.example", "/overview"),
        ("/\\evil.example", "/overview"),
        ("/x\r\nset-cookie: a=b", "/x%0D%0Aset-cookie:%20a=b"),
    ],
)
async def test_sign_in_is_not_an_open_redirect(service: ConsoleService, wanted: str, words: str) -> None:
    assert (await Browser(service).sign_in(token=service.token, next=wanted)).json["next"] == words


async def test_sign_in_link_is_valid_once_and_expires(service: ConsoleService) -> None:
    link = service.link()
    first = Browser(service)
    assert (await first.get(link.removeprefix(ADDRESS))).status == 200
    assert (await first.get("/")).status == 303, "a GET request does not sign in"
    assert (await first.open(link)).status == 200
    session = first.session
    assert (await first.get("/")).status == 200
    again = await Browser(service).open(link)
    assert again.status == 401
    assert "already used" in again.error["message"]
    assert (await first.open(link)).json == {"next": "/overview"}, "the other session remains valid"
    assert first.session == session
    late = service.link()
    service.clock += LINK_LIFETIME
    assert (await Browser(service).open(late)).status == 401


async def test_login_csrf_by_a_sign_in_link_requires_confirmation(service: ConsoleService) -> None:
    """Login CSRF: another site could sign the browser in as the attacker, with the attacker's jobs."""
    link = service.link().removeprefix(ADDRESS)
    for site, at_once in (("none", True), ("cross-site", False), ("same-site", False), ("", False)):
        page = (await Browser(service).get(link, ("sec-fetch-site", site))).body.decode()
        assert ("data-now" in page) is at_once, site
    page = (await Browser(service).get("/login", ("sec-fetch-site", "none"))).body.decode()
    assert "data-now" not in page


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "trainshed.localhost"])
async def test_localhost_name_redirects_to_the_address_of_the_service(
    service: ConsoleService, name: str
) -> None:
    """Otherwise a program that listens on the other address could impersonate the console."""
    service.new_console("http://127.0.0.1:8080")
    browser = Browser(service)
    here = (("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080"))
    assert (await browser.sign_in(*here, token=service.token)).status == 200
    host = ("host", f"{name}:9000")
    answer = await browser.get("/jobs/7?x=%2F", host)
    assert answer.headers["location"] == "http://127.0.0.1:9000/jobs/7?x=%2F"
    own = ("origin", f"http://{name.lower()}:9000")
    assert (await browser.post("/logout", host, own)).status == 403
    assert (await browser.get("/", ("host", "127.0.0.1:9000"))).status == 200, "the port of an SSH tunnel"
    service.new_console("https://localhost:8080")
    assert (await browser.get("/", host)).status == 200


async def test_api_errors_do_not_sign_a_browser_out(service: ConsoleService, browser: Browser) -> None:
    """Browsers drop credentials after a 401, so any site could sign the user out with a link (CSRF)."""
    for path in ("/trainshed/v1/status", "/v1/projects/p1/locations/us-central1/customJobs"):
        answer = await browser.get(path)
        assert (answer.status, answer.error["status"]) == (403, "UNAUTHENTICATED")
        assert (await Browser(service).get(path)).status == 401


async def test_token_guessing_within_a_session_is_rejected_and_audited(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication_limits, "_DELAY_SECONDS", 0.0)
    assert {(await browser.sign_in(token="guessed")).status for _ in range(31)} == {403}
    audit = await service.result("GET", "/trainshed/v1/audit?project=-")
    assert audit["entries"][0]["method"] == "trainshed.v1.Tokens.Refused"


async def test_command_line_gets_a_sign_in_link_for_its_token(service: ConsoleService) -> None:
    answer = await service.call("POST", "/login/link", {})
    assert (await Browser(service).open(answer.json["uri"])).status == 200
    assert (await service.call("POST", "/login/link", {}, token="nonsense")).status == 401
    assert (await service.call("POST", "/login/link", {}, token=None)).status == 403


async def test_brute_force_of_session_credentials_is_delayed(
    service: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser that is signed in is never delayed."""
    slowed: list[str] = []

    async def record_delay(of: object, source: str) -> None:
        slowed.append(source)

    monkeypatch.setattr(authentication_limits.AuthenticationLimiter, "delay_failure", record_delay)
    guessing, signed_in = Browser(service), Browser(service)
    assert (await signed_in.sign_in(token=service.token)).status == 200
    assert (await signed_in.get("/jobs")).status == 200
    assert (await guessing.get("/jobs")).status == 303 and slowed == [], "a missing session is not a guess"
    guessing.session = "x" * 43
    assert (await guessing.get("/jobs")).status == 303 and len(slowed) == 1


async def test_session_ends_after_its_lifetime_or_with_its_token(service: ConsoleService) -> None:
    browser, other = Browser(service), Browser(service)
    await browser.sign_in(token=service.token)
    service.clock += LIFETIME
    assert (await browser.get("/")).status == 303
    await other.sign_in(token=add_user(service.tokens, "somebody@example.com"))
    assert (await other.get("/")).status == 200
    service.tokens.replace(AccessBook())
    assert (await other.get("/")).status == 303


async def test_sign_out_everywhere_ends_all_sessions_and_tokens(service: ConsoleService) -> None:
    """After a sign-out of one browser, the page lists the remaining access."""
    here, there, other = Browser(service), Browser(service), Browser(service)
    await here.sign_in(token=add_user(service.tokens, "ana@corp.example"))
    await there.sign_in(token=add_user(service.tokens, "ana@corp.example"))
    await other.sign_in(token=add_user(service.tokens, "bo@corp.example"))
    answer = await here.post("/logout")
    assert answer.headers["location"] == "/login?out=here"
    assert "trainshed login --forget" in text_of(await here.get("/login?out=here"))
    assert (await there.get("/")).status == 200
    assert (await there.post("/logout", out="everywhere")).status == 303
    assert [token.email for token in service.tokens.book.tokens.values()] == ["bo@corp.example"]
    assert (await other.get("/")).status == 200
    owners = [Browser(service), Browser(service)]
    for owner in owners:
        await owner.sign_in(token=service.token)
    assert (await owners[0].post("/logout", out="everywhere")).status == 303
    assert (await owners[1].get("/")).status == 303


async def test_session_file_contains_no_secrets(service: ConsoleService, browser: Browser) -> None:
    file = service.directory / "sessions.json"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert service.token not in text
    assert browser.session not in text
    assert len(json.loads(text)) == 1


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://trainshed.example.evil.example", "http://127.0.0.1"]
)
async def test_csrf_requests_from_other_origins_are_rejected(browser: Browser, origin: str) -> None:
    paths = (re.sub(r"{\w+}", "1", path) for _, path in ACTIONS)
    forms = ["/logout", "/login", "/login/link", *paths]
    assert "/quotas" in forms
    for path in forms:
        answer = await browser.post(path, ("origin", origin))
        assert answer.status == 403, path
    assert (await browser.get("/")).status == 200, "the session remains valid"


async def test_csrf_from_the_http_origin_is_rejected_on_https(service: ConsoleService) -> None:
    """An attacker on the network can forge pages of the HTTP origin."""
    service.new_console("https://trainshed.example")
    browser = Browser(service)
    await browser.sign_in(("origin", "https://trainshed.example"), token=service.token)
    for scheme, status in (("http", 403), ("ftp", 403), ("https", 303)):
        origin = ("origin", f"{scheme}://trainshed.example")
        assert (await browser.post("/logout", origin)).status == status, scheme


async def test_get_requests_to_the_paths_of_actions_change_nothing(browser: Browser) -> None:
    for _, path in ACTIONS:
        answer = await browser.get(re.sub(r"{\w+}", "1", path))
        assert answer.status in (200, 404), path


async def test_responses_have_csp_and_clickjacking_headers(service: ConsoleService, browser: Browser) -> None:
    made = await service.result("POST", "/v1/projects/p1/locations/us-central1/customJobs", JOB)
    uid = made["name"].rpartition("/")[2]
    paths = ["/", "/login", f"/jobs/{uid}", f"/jobs/{uid}/lines", "/jobs/1/nothing", "/assets/x.js"]
    for path in paths:
        answer = await browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "no-store" in answer.headers.get("cache-control", "no-store")
