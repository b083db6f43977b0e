"""Web pages of jobs: at separate host names, behind the console's sign-in, and forwarded ports
(docs/notebooks.md).
"""

import json
import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from tests.commands import running
from tests.e2e.browsing import WITH_CHROMIUM
from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    SKLEARN,
    Answer,
    Service,
    command,
    container_job,
    environment,
    submit,
    trainshed,
)
from tests.ports import free_port
from trainshed.cli.run.notebook import UNUSED

pytestmark = pytest.mark.e2e
PROGRAM = (Path(__file__).parent / "programs" / "web_page.py").read_text()
PORT = free_port()


@pytest.fixture(scope="module")
def job(service: Service) -> Iterator[str]:
    """A job that serves a page at a port, `web`, and at a Unix socket, `page`."""
    body = container_job(PROGRAM, name="served")
    body["labels"] = {"trainshed-ports": f"web-{PORT}_page"}
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"] = [str(PORT)]
    made = submit(service, body)
    assert next(service.follow(made)) == "here"
    next(view for view in service.watch(made, 30) if view["state"] == "RUNNING")
    yield made
    service.call("POST", f"{CUSTOM_JOBS}/{made}:cancel", {})
    service.finish(made, 60)


class Visitor:
    """A browser's path to a page of a job, with its cookies."""

    def __init__(self, service: Service, job: str, port: str, token: str = "") -> None:
        self._service = service
        ticket = ticket_of(service, job, port, token)
        self.host = urlsplit(str(ticket["uri"])).netloc
        let_in = self.ask(ticket["uri"].partition(self.host)[2])
        assert (let_in.status, let_in.headers["Location"]) == (303, "/")
        self.cookie = str(let_in.headers["Set-Cookie"]).partition(";")[0]

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        sent = {"Host": self.host, **{name.replace("_", "-"): headers[name] for name in headers}}
        return self._service.ask(method, path, body, token=None, headers=sent)

    def websocket(self, cookie: str, origin: str) -> ClientConnection:
        return connect(
            f"ws://{self.host}/echo",
            origin=Origin(origin),
            additional_headers={"Cookie": cookie},
            open_timeout=60,
            subprotocols=[Subprotocol("other"), Subprotocol("echo")],
            sock=socket.create_connection(("127.0.0.1", urlsplit(self._service.rest).port or 0)),
        )


def ticket_of(service: Service, job: str, port: str, token: str = "") -> Mapping[str, Any]:
    answer = service.ask("POST", f"/trainshed/v1/jobs/{job}:shell", {"port": port}, token=token)
    assert answer.status == 200, answer.body
    return answer.json


@WITH_CHROMIUM
def test_web_page_served_by_a_job_opens_and_its_websocket_connects(
    service: Service, job: str, enter: Callable[..., Page]
) -> None:
    page = enter()
    page.goto(f"{service.rest}/jobs/{job}")
    for name in ("web", "page"):
        with page.context.expect_page() as opened:
            page.get_by_role("link", name=f"Open {name}").click()
        shown = opened.value
        expect(shown.locator("#heard")).to_have_text("echo: hello")
        assert re.fullmatch(rf"http://{name}-\d+-[a-z2-7]{{24}}\.localhost:\d+/", shown.url)


@WITH_CHROMIUM
@pytest.mark.soak
def test_notebook_on_a_job_page_runs_cells(service: Service, enter: Callable[..., Page]) -> None:
    """JupyterLab as installed by `trainshed run --notebook`, with a kernel behind a WebSocket. Saved files
    are in the job's output.
    """
    words = f"run --notebook --detach --image {SKLEARN} --output gs://trainshed/notes"
    made = trainshed(*words.split(), data=service.data).stdout.strip().rpartition("/")[2]
    printed = takewhile(lambda line: "is running at" not in line, service.follow(made))
    assert f"shut down after {UNUSED} seconds" in "".join(printed)
    # Complaints of JupyterLab's own page do not count.
    page = enter().context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{service.rest}/jobs/{made}/ports/notebook")
    page.wait_for_url("**/lab*")
    page.locator(".jp-LauncherCard", has_text="Python 3").first.click()
    page.get_by_text("| Idle").wait_for()
    page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
    page.keyboard.type("print(6 * 7000)")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output", has_text="42000").wait_for()
    page.context.close()
    service.call("POST", f"{CUSTOM_JOBS}/{made}:cancel", {})
    service.finish(made, 60)
    assert service.read("trainshed", "notes/Untitled.ipynb")


def test_job_page_receives_no_credentials_of_the_service(service: Service, job: str) -> None:
    visitor = Visitor(service, job, "page")
    answer = visitor.ask("/x%20y?a=b", Cookie=f"a=1; {visitor.cookie}; b=2")
    assert (answer.status, answer.json["first"]) == (200, "GET /x%20y?a=b HTTP/1.1")
    assert answer.json["headers"]["cookie"] == "a=1; b=2"
    assert answer.json["headers"]["host"] == visitor.host
    cookies = answer.headers.get_all("Set-Cookie")
    assert cookies == ["theirs=1"], "it takes no cookie of ours away"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    put = visitor.ask("/put", "PUT", bytes(3 << 20), Cookie=visitor.cookie)
    assert put.json["body"] == 3 << 20


def test_job_page_answers_parallel_requests(service: Service, job: str) -> None:
    visitor = Visitor(service, job, "page")
    with ThreadPoolExecutor(40) as browsers:
        answers = [browsers.submit(visitor.ask, "/x", Cookie=visitor.cookie) for _ in range(40)]
    assert {answer.result().status for answer in answers} == {200}


def test_job_page_rejects_other_users(service: Service, job: str) -> None:
    visitor, other = Visitor(service, job, "page"), Visitor(service, job, "web")
    assert visitor.ask("/").status == 403
    link = ticket_of(service, job, "page")["uri"].partition(visitor.host)[2]
    assert visitor.ask(link).status == 303
    assert visitor.ask(link).status == 403, "good once"
    cookie = visitor.cookie
    for kind, status in (("document", 200), ("iframe", 403), ("empty", 403)):
        answer = visitor.ask("/", Cookie=cookie, Sec_Fetch_Site="same-site", Sec_Fetch_Dest=kind)
        assert answer.status == status
    assert visitor.ask("/", "POST", b"", Cookie=visitor.cookie, Origin=service.rest).status == 403
    for cookie, origin in (("", visitor.host), (visitor.cookie, other.host)):
        with pytest.raises(InvalidStatus):
            visitor.websocket(cookie, f"http://{origin}")
    # No API and no page of the service is reachable there.
    for path in ("/healthz", "/jobs", "/trainshed/v1/jobs", "/storage/v1/b"):
        assert visitor.ask(path).status == 403


def test_job_page_closes_when_the_permission_is_revoked(service: Service, job: str) -> None:
    words = ("--role", "roles/editor", "--project", PROJECT)
    made = trainshed("tokens", "create", "bo@example.org", *words, data=service.data)
    visitor = Visitor(service, job, "page", made.stdout.strip())
    assert visitor.ask("/", Cookie=visitor.cookie).status == 200
    with visitor.websocket(visitor.cookie, f"http://{visitor.host}") as far:
        far.send(b"x" * 50_000)
        assert len(far.recv(60)) == 50_000
        trainshed("tokens", "delete", made.stderr.split()[0], data=service.data)
        with pytest.raises(ConnectionClosed):
            far.recv(60)


def test_job_port_is_forwarded_to_the_clients_machine(service: Service, job: str) -> None:
    """The timeline contains it once for any number of connections."""
    here = free_port()
    words = ("jobs", "forward", job, f"{here}:{PORT}", "--data", str(service.data))
    variables = {**os.environ, **environment(service.data)}
    with running(*command(*words), env=variables, stderr=subprocess.PIPE) as forwarding:
        assert forwarding.stderr is not None and b"forwards to" in forwarding.stderr.readline()
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{here}/x", timeout=30) as answer:
                assert json.load(answer)["first"] == "GET /x HTTP/1.1"
    timeline = service.call("GET", f"/trainshed/v1/jobs/{job}/timeline")["entries"]
    assert sum(f"opened port {PORT}" in entry["message"] for entry in timeline) == 1
