"""CSRF and related attacks on a signed-in user's browser: programs' servers on other ports and pages in
buckets get no access, at every isolation level (docs/adr/0070).
"""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar, cast
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Error, expect

from tests.e2e.browsing import WITH_CHROMIUM, sign_in
from tests.e2e.hostile.attack_setup import OTHER, OWN, AttackSetup, open_attack_setup, parent_of
from tests.e2e.hostile.table import Column, columns
from tests.e2e.running import running, trainshed
from tests.summary_writers import GOLDEN
from trainshed.buckets.callers import storage_key

pytestmark = [pytest.mark.e2e, WITH_CHROMIUM]


@pytest.fixture(scope="module", params=columns())
def setup(request: pytest.FixtureRequest) -> Iterator[AttackSetup]:
    with open_attack_setup(cast("Column", request.param)) as made:
        yield made


def printed_value(setup: AttackSetup, job: str, word: str) -> list[dict[str, object]]:
    """Return all reports of the program for a word so far."""
    lines = setup.service.lines(job)
    return [json.loads(line.removeprefix(word)) for line in lines if line.startswith(word + " ")]


def test_program_cannot_act_as_the_user_of_a_browser(setup: AttackSetup, chromium: Browser) -> None:
    secret = setup.secret()
    events = {"AIP_TENSORBOARD_LOG_DIR": "gs://attacked/logs"}
    victim = setup.submit(OTHER, "victim", secret, "wait", **events)
    summaries = (GOLDEN / "torch-scalars.tfevents").read_bytes()
    setup.service.put("attacked", "logs/train/events.out.tfevents.1", summaries)
    setup.printed_value(victim, "ENDPOINT")
    job = setup.submit(OWN, "bait", REST=setup.service.rest, VICTIM=victim)
    laid = json.loads(setup.printed_value(job, "LAID"))
    assert laid["answers"] == [200, 200, 403], "it may write a page, and not open it to everybody"

    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    sign_in(page, setup.service)
    console = f"{setup.service.rest}/jobs/{victim}"
    page.goto(console)
    expect(page.locator("#tail")).to_contain_text(secret)
    board = context.new_page()
    link = setup.service.call("POST", f"/trainshed/v1/jobs/{victim}:tensorboard", {})
    board.goto(link["uri"])
    board.wait_for_url(f"{setup.service.rest}/tensorboard/{victim}/*/", timeout=120_000)
    assert not context.cookies(), "another port of this host would get them"

    # Its servers by all names of this machine, on its own port and, with IPv6, on the service's.
    bait = context.new_page()
    names = [f"{name}:{laid['port']}" for name in ("127.0.0.1", "localhost", "trainshed.localhost")]
    if laid["six"]:
        names += [f"localhost:{laid['six']}", f"trainshed.localhost:{laid['six']}"]
    board.evaluate(f"location.href = 'http://127.0.0.1:{laid['port']}/from-board'")
    board.wait_for_function("document.title === 'done'")
    for name in names:
        bait.goto(f"http://{name}/jobs/{victim}")
        bait.wait_for_function("document.title === 'done'")

    # Its page, with the opener's key, as a link in the console's responses would have it.
    keyed = f"{setup.service.rest}/with/{storage_key(setup.service.token)}"
    paths = "/storage/v1/b/bait/o/page.html?alt=media", "/download/storage/v1/b/bait/o/page.html"
    for place in (setup.service.rest, keyed):
        for path in paths:
            try:
                bait.goto(place + path)
            except Error as refused:
                assert "Download is starting" in str(refused)
            shown = bait.evaluate("document.title + document.body.innerText")
            assert "settings" not in shown.lower()

    # Lines arrive in order: the line of a last request follows all earlier ones.
    context.request.get(f"http://127.0.0.1:{laid['port']}/end")
    assert any('"/end"' in line for line in setup.service.follow(job))
    text = printed_value(setup, job, "HEARD")
    assert {entry["host"] for entry in text} == set(names)
    assert [entry["stolen"] for entry in text] == [{}] * len(text)
    assert not [entry for entry in text if str(entry["path"]).startswith("/loot")]
    assert not [entry for entry in text if str(entry["from"]).startswith(setup.service.rest)]
    assert [entry["from"] for entry in text if entry["path"] == "/from-board"] == [None]
    assert all(set(entry.values()) <= {303, 401, 403} for entry in printed_value(setup, job, "GOT"))
    assert [any(x.values()) for x in printed_value(setup, job, "REPORT")] == [False] * (len(names) + 1)

    page.reload()
    expect(page.locator("#tail")).to_contain_text(secret)
    assert not setup.service.call("GET", f"/trainshed/v1/jobs/{victim}").get("endTime")
    view = setup.service.call("GET", f"{parent_of(OTHER)}/{victim}")
    assert view["state"] == "JOB_STATE_RUNNING", "it was not cancelled"
    context.close()


class Noting(BaseHTTPRequestHandler):
    """A hostile server on another port of the console's host."""

    stolen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.stolen.append(self.headers["Cookie"] or self.headers["Authorization"])
        self.send_response(204)
        self.end_headers()


def test_session_cookie_is_not_sent_to_other_ports(
    tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cookie is not sent even to a port with the service's own certificate."""
    monkeypatch.setenv("TRAINSHED_ALLOWED_HOSTS", "shed.example")
    arguments = "--host", "0.0.0.0", "--tls"
    other = HTTPServer(("127.0.0.1", 0), Noting)
    with running(tmp_path / "data", *arguments, new_authority=True) as service, other:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        files = tmp_path / "data" / "tls"
        context.load_cert_chain(files / "server.pem", files / "server.key")
        other.socket = context.wrap_socket(other.socket, server_side=True)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        visitor = chromium.new_context(ignore_https_errors=True)
        page = visitor.new_page()
        port = urlsplit(service.rest).port
        printed = trainshed("console", "--data", str(service.data), data=service.data).stdout
        link = urlsplit(printed.split()[0])
        page.goto(f"https://shed.example:{port}/login?{link.query}")
        page.wait_for_url(f"https://shed.example:{port}/overview")
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        # A 204 keeps the browser on the page.
        with page.expect_response(f"https://shed.example:{other.server_port}/**"):
            page.evaluate(f"location.href = 'https://shed.example:{other.server_port}/jobs/1'")
        # The 204's navigation may still be active, and would abort a reload.
        page = visitor.new_page()
        page.goto(f"https://shed.example:{port}/")
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        visitor.close()
        other.shutdown()
    assert Noting.stolen and set(Noting.stolen) == {None}
