"""Who gets in, by what, for how long, and what nobody gets (docs/adr/0071)."""

import json
import re

import pytest

from tests.contract.console.browser import ADDRESS, Browser, ConsoleHouse, text_of
from trainshed.access.principals import Principal
from trainshed.access.sessions import LIFETIME, LINK_LIFETIME
from trainshed.console.routes import ACTIONS

pytestmark = pytest.mark.anyio
JOB = {
    "displayName": "first",
    "jobSpec": {
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": 1,
                "containerSpec": {"imageUri": "gcr.io/p1/train", "command": ["true"]},
            }
        ]
    },
}


async def test_nobody_sees_a_page_without_signing_in(house: ConsoleHouse) -> None:
    stranger = Browser(house)
    for path in ("/", "/jobs", "/jobs/1", "/jobs/1/logs"):
        answer = await stranger.get(path)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/login?next=")
    for path in ("/events/jobs", "/jobs/1/lines", "/events/jobs/1/logs?lines=true"):
        answer = await stranger.get(path, ("accept", "application/json"))
        assert answer.status in (303, 401)
    assert (await stranger.post("/jobs/1/cancel")).status == 401


async def test_a_token_signs_in_and_a_wrong_one_does_not(house: ConsoleHouse) -> None:
    browser = Browser(house)
    refused = await browser.post("/login", token="nonsense")
    assert refused.status == 401
    assert "not known here" in text_of(refused)
    assert "nonsense" not in refused.body.decode()
    assert not browser.cookie
    welcome = await browser.post("/login", token=f" {house.token}\n")
    assert (welcome.status, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert (await browser.get("/")).status == 200


async def test_the_cookie_of_an_address_with_https_is_secure(house: ConsoleHouse) -> None:
    house.new_console("https://trainshed.example")
    answer = await Browser(house).post(
        "/login", ("origin", "https://trainshed.example"), token=house.token
    )
    assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("/jobs/7?x=1", "/jobs/7?x=1"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/x\r\nset-cookie: a=b", "/x%0D%0Aset-cookie:%20a=b"),
    ],
)
async def test_after_a_login_one_stays_here(house: ConsoleHouse, wanted: str, given: str) -> None:
    answer = await Browser(house).post("/login", token=house.token, next=wanted)
    assert answer.headers["location"] == given


async def test_a_link_is_good_once_and_not_for_long(house: ConsoleHouse) -> None:
    link = house.console.link(house.token).removeprefix(ADDRESS)
    first = Browser(house)
    assert (await first.get(link)).status == 303
    assert (await first.get("/")).status == 200
    again = await Browser(house).get(link)
    assert again.status == 401
    assert "used already" in text_of(again)
    late = house.console.link(house.token).removeprefix(ADDRESS)
    house.clock += LINK_LIFETIME
    assert (await Browser(house).get(late)).status == 401


async def test_the_command_gets_a_link_for_its_token(house: ConsoleHouse) -> None:
    answer = await house.call("POST", "/login/link", {})
    assert (await Browser(house).get(answer.json["uri"].removeprefix(ADDRESS))).status == 303
    assert (await house.call("POST", "/login/link", {}, token="nonsense")).status == 401
    assert (await house.call("POST", "/login/link", {}, token=None)).status == 403


async def test_a_session_ends_with_its_time_its_token_or_by_signing_out(
    house: ConsoleHouse,
) -> None:
    browser, other = Browser(house), Browser(house)
    for each in (browser, other):
        await each.post("/login", token=house.token)
    kept = browser.cookie
    assert (await browser.post("/logout")).status == 303
    browser.cookie = kept
    assert (await browser.get("/")).status == 303
    house.new_console()
    assert (await other.get("/")).status == 200, "a restart signs nobody out"
    house.clock += LIFETIME
    assert (await other.get("/")).status == 303
    fresh = Browser(house)
    somebody = Principal("somebody@example.com")
    await fresh.post("/login", token=house.tokens.issue(somebody))
    assert (await fresh.get("/")).status == 200
    house.tokens.revoke(somebody)
    assert (await fresh.get("/")).status == 303


async def test_the_file_holds_no_cookie_and_no_token(house: ConsoleHouse) -> None:
    browser = Browser(house)
    await browser.post("/login", token=house.token)
    file = house.directory / "sessions.json"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert house.token not in text
    assert browser.cookie.partition("=")[2] not in text
    assert len(json.loads(text)["sessions"]) == 1


async def test_the_cookie_opens_the_console_alone(house: ConsoleHouse, browser: Browser) -> None:
    for path in ("/trainshed/v1/status", "/v1/projects/p1/locations/us-central1/customJobs"):
        assert (await browser.get(path)).status == 401


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.example",
        "http://trainshed.example.evil.example",
        "http://127.0.0.1",
    ],
)
async def test_pages_of_others_change_nothing(browser: Browser, origin: str) -> None:
    forms = ["/logout", "/login", *(re.sub(r"{\w+}", "1", path) for _, path in ACTIONS)]
    assert "/quotas" in forms
    for path in forms:
        answer = await browser.post(path, ("origin", origin))
        assert answer.status == 403, path
        # A token beside the cookie excuses nothing.
        answer = await browser.post(path, ("origin", origin), ("authorization", "Bearer x"))
        assert answer.status == 403, path
    assert (await browser.get("/")).status == 200, "still signed in"


async def test_a_page_without_tls_changes_nothing_where_tls_is_spoken(house: ConsoleHouse) -> None:
    """Whoever is on the way to the browser can write such a page."""
    house.new_console("https://trainshed.example")
    browser = Browser(house)
    await browser.post("/login", ("origin", "https://trainshed.example"), token=house.token)
    for origin, status in (
        ("http://trainshed.example", 403),
        ("ftp://trainshed.example", 403),
        ("https://trainshed.example", 303),
    ):
        assert (await browser.post("/logout", ("origin", origin))).status == status, origin


async def test_nothing_is_changed_by_looking(browser: Browser) -> None:
    for _, path in ACTIONS:
        answer = await browser.get(re.sub(r"{\w+}", "1", path))
        assert answer.status in (200, 404), path


async def test_a_foreign_name_is_refused_before_anything(house: ConsoleHouse) -> None:
    answer = await house.call(
        "GET", "/login", token=None, headers=[("host", "evil.example"), ("accept", "text/html")]
    )
    assert answer.status == 421


async def test_programs_are_told_the_health_at_the_root(house: ConsoleHouse) -> None:
    assert (await house.call("GET", "/", token=None)).json["status"] == "ok"


async def test_every_answer_is_guarded(house: ConsoleHouse, browser: Browser) -> None:
    made = (await house.call("POST", "/v1/projects/p1/locations/us-central1/customJobs", JOB)).json
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


async def test_who_works_in_one_project_sees_that_alone(house: ConsoleHouse) -> None:
    for project in ("p1", "p2"):
        path = f"/v1/projects/{project}/locations/us-central1/customJobs"
        await house.call("POST", path, {**JOB, "displayName": f"of-{project}"})
    guest = Browser(house)
    token = house.tokens.issue(Principal("guest@example.com", project="p2"))
    await guest.post("/login", token=token)
    page = text_of(await guest.get("/"))
    assert "of-p2" in page
    assert "of-p1" not in page
    assert (await guest.get("/?project=p1")).status == 403
    assert (await guest.get("/jobs/1000")).status == 403
    assert (await guest.post("/jobs/1000/cancel")).status == 403
