"""Shells for users: single-use tickets, links of jobs, the WebSocket, timeline entries
(spec/operations#shells)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import force_setattr

from tests.contract.api.api_service import ADDRESS, LOCATION, SECOND, START
from tests.contract.api.fake_shells import ApiServiceWithShells, Socket, connect
from tests.contract.api.test_tuning_jobs import create_tuning_job
from tests.people import add_user
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import container, custom_job, ml_job, package, pool
from tests.unit.test_specs_tuning import tuning_job
from trainshed.access import authentication_limits
from trainshed.access.permissions import PERMISSIONS, ROLES
from trainshed.access.policy import Grant
from trainshed.access.principals import Principal
from trainshed.access.tokens import digest_of
from trainshed.api.calls.links import LIFETIME, TICKET_LIFETIME, Links, Ticket
from trainshed.api.resources.jobs import OPEN_SHELL
from trainshed.api.shell import surface
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.study.records import StudyUid, Trial, TrialState
from trainshed.core.terminals import Autopsy, dashboard_port
from trainshed.core.tuning.records import RunningTrial

SERVICE_CLASS = ApiServiceWithShells
PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)
JOBS = f"{LOCATION}/customJobs"
JOB = "/trainshed/v1/jobs/1000"
PROGRAM_TOKEN = "of-a-program"


async def running(service: ApiServiceWithShells, *, web_access: bool = True) -> str:
    """Start a custom job of two replicas and return its name."""
    body = custom_job(pool(), package(), enableWebAccess=web_access)
    name: str = (await service.result("POST", JOBS, body))["name"]
    await service.run(name)
    return name


async def links(service: ApiServiceWithShells, name: str, token: str = "") -> dict[str, str]:
    return (await service.result("GET", f"/v1/{name}", token=token)).get("webAccessUris", {})


async def described_links(service: ApiServiceWithShells, token: str = "") -> dict[str, str]:
    uris: dict[str, str] = (await service.result("GET", JOB, token=token))["webAccessUris"]
    return uris


def fields_of(link: str) -> dict[str, str]:
    """Return the fields that the page of a shell sends to get a ticket."""
    return {name: values[0] for name, values in parse_qs(urlsplit(link).fragment).items()}


@asynccontextmanager
async def shell(service: ApiServiceWithShells, token: str = "", **order: Any) -> AsyncGenerator[Socket]:
    """Open a connection that requests a shell, with a new ticket if no token is passed."""
    token = token or (await service.result("POST", f"{JOB}:shell", {}))["token"]
    async with connect(service.app) as socket:
        socket.send_text(token=token, **order)
        yield socket


async def shell_entries(service: ApiServiceWithShells) -> list[str]:
    entries = await service.store.reader.timeline(JobUid(1000))
    return [entry.message for entry in entries if entry.kind == "shell"]


async def open_page(
    service: ApiServiceWithShells, uid: JobUid, name: str, token: str = ""
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Open a page of a job as a browser does, and return its headers: host and session cookie."""
    ticket = await service.result("POST", f"/trainshed/v1/jobs/{uid}:shell", {"port": name}, token=token)
    uri = urlsplit(str(ticket["uri"]))
    host = ("Host", uri.netloc)
    opened = await service.call("GET", f"{uri.path}?{uri.query}", token=None, headers=[host])
    return host, ("Cookie", opened.headers["set-cookie"].partition(";")[0])


def autopsy(replica: ReplicaId = WORKER, attempt: int = 1) -> Autopsy:
    return Autopsy(JobUid(1000), attempt, replica, 1, START, START + 24 * 3600 * SECOND, 4096, exit_code=3)


async def test_shell_is_opened_used_and_recorded_in_the_timeline(service: ApiServiceWithShells) -> None:
    """spec/operations#shells: the job's timeline contains every step of a user's shell."""
    await running(service, web_access=False)
    ticket = await service.result("POST", f"{JOB}:shell", {"replica": "worker 0"})
    assert (ticket["replica"], ticket["task"]) == ("workerpool1-0", "workerpool1-0")
    async with connect(service.app) as socket:
        socket.send_text(token=ticket["token"], rows=50, columns=132, term="tmux", label="my $(job)")
        assert await socket.next() == {"title": "workerpool1-0, job"}
        ((uid, attempt, replica, incarnation, wish),) = service.shells.opened
        assert (uid, attempt, replica, incarnation) == (1000, 1, WORKER, 1)
        assert (wish.rows, wish.columns, wish.term) == (50, 132, "tmux")
        assert wish.label == "my job workerpool1-0"
        assert await shell_entries(service) == ["owner@trainshed.local opened a shell in workerpool1-0."]
        terminal = service.shells.terminals[0]
        socket.type(b"ls\r")
        assert await socket.next() == b"ls\r"
        socket.send_text(resize=[10, 20])
        socket.send_text(resize=["a", 20])
        socket.send_text(something="newer")
        service.clock += 75 * SECOND
        socket.send_text(end=True)
        assert await socket.next() == {"exit": 0}
        assert await socket.next() is None
        assert socket.close_code == 1000
    assert (terminal.typed, terminal.sizes) == (b"ls\r", [(10, 20)])
    assert terminal.ended
    assert terminal.closed
    assert (await shell_entries(service))[1:] == [
        "The shell of owner@trainshed.local in workerpool1-0 was closed after 75 s."
    ]


async def test_shell_ticket_for_a_port_of_a_job_connects_to_that_port(service: ApiServiceWithShells) -> None:
    """A port is selected by number or by the name of a page of the job. A command in the request is
    ignored."""
    body = custom_job(pool(), package()) | {"labels": {"trainshed-ports": "web-8000_page"}}
    await service.run((await service.call("POST", JOBS, body)).json["name"])
    pages = (await service.call("GET", JOB)).json["pages"]
    assert pages == {name: f"{ADDRESS}/jobs/1000/ports/{name}" for name in ("web", "page")}
    for unknown in ("1" * 5000, "board"):
        refused = await service.call("POST", f"{JOB}:shell", {"port": unknown})
        assert "a page of the job: web, page." in refused.json["error"]["message"]
    wishes = (("web", "8000"), ("page", "page.sock"), ("6006", "6006"), ("6006", "6006"))
    for wanted, port in wishes:
        ticket = (await service.call("POST", f"{JOB}:shell", {"port": wanted})).json
        assert ticket["uri"] == "", "this service has no names for pages"
        async with shell(service, ticket["token"], command="rm -rf /") as socket:
            assert await socket.next() == {"title": wanted}
        wish = service.shells.opened[-1][-1]
        assert (wish.port, wish.command, wish.is_terminal) == (port, None, False)
    opened = "owner@trainshed.local opened"
    assert await shell_entries(service) == [
        f"{opened} the page web of workerpool0-0.",
        f"{opened} the page page of workerpool0-0.",
        f"{opened} port 6006 of workerpool0-0.",
    ]


async def test_forwarded_port_is_closed_if_the_connection_cannot_be_recorded(
    service: ApiServiceWithShells, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(service)
    monkeypatch.setattr(surface, "record_port_use", AsyncMock(side_effect=Unavailable("disk full")))
    ticket = (await service.call("POST", f"{JOB}:shell", {"port": "6006"})).json
    async with shell(service, ticket["token"]) as socket:
        assert await socket.next() == {"error": "disk full"}
    assert service.shells.terminals[-1].closed


async def test_stolen_cookie_of_a_job_page_opens_only_that_page_for_a_limited_time(
    service: ApiServiceWithShells,
) -> None:
    """The page closes when the job stops offering it. A shell would execute such requests as commands."""
    links = Links(b"key", ADDRESS, service.now, "localhost")
    force_setattr(service.services, "links", links)
    body, name = ml_job(labels={"trainshed-ports": "web-8000_page"}), "projects/p1/jobs/job_1"
    await service.result("POST", "/v1/projects/p1/jobs", body)
    job = await service.run(name)
    bo = add_user(service.tokens, "bo@corp.example", "roles/ml.developer", "p1")
    page, cookie = await open_page(service, job.uid, "page", bo)
    web, owners = await open_page(service, job.uid, "web")

    async def status_with(*headers: tuple[str, str]) -> int:
        return (await service.call("GET", "/;reboot", token=None, headers=headers)).status

    assert await status_with(page, cookie) == 503, "it leads to the job, where nothing answers"
    assert (await status_with(web, cookie), await status_with(cookie)) == (403, 404)
    service.tokens.replace(service.tokens.book.without_tokens([digest_of(bo)]))
    assert (await status_with(page, cookie), await status_with(web, owners)) == (403, 503)
    await service.result("PATCH", f"/v1/{name}?updateMask=labels", {"labels": {}})
    assert await status_with(web, owners) == 404
    service.clock += LIFETIME
    assert await status_with(web, owners) == 403
    assert len(service.shells.opened) == 2


async def test_client_disconnect_closes_the_shell_and_is_recorded(service: ApiServiceWithShells) -> None:
    await running(service)
    async with shell(service) as socket:
        await socket.next()
    assert service.shells.terminals[0].closed
    assert len(await shell_entries(service)) == 2


async def test_shell_ticket_is_valid_for_a_single_use_within_one_minute(
    service: ApiServiceWithShells,
) -> None:
    await running(service)
    used = (await service.result("POST", f"{JOB}:shell", {}))["token"]
    late = (await service.result("POST", f"{JOB}:shell", {}))["token"]
    async with shell(service, used) as socket:
        await socket.next()
    service.clock += TICKET_LIFETIME
    for token in (used, late, "guessed", ""):
        async with connect(service.app) as socket:
            socket.send_text(token=token)
            assert "token of this shell" in (await socket.next())["error"]
            assert await socket.next() is None
            assert socket.close_code == 1008
    assert len(service.shells.opened) == 1


async def test_malformed_shell_request_returns_an_error_message(service: ApiServiceWithShells) -> None:
    async with connect(service.app) as socket:
        socket.sent.put_nowait({"type": "websocket.receive", "text": "[" * 20_000})
        # Python 3.14 parses a document that earlier versions reject as too deeply nested.
        assert "Invalid JSON payload" in (await socket.next())["error"]


async def test_number_of_unused_shell_tickets_is_limited(service: ApiServiceWithShells) -> None:
    ticket = Ticket(JobUid(1000), PRIMARY, "somebody", Principal("somebody"))
    first, _ = service.services.tickets.issue(ticket)
    others = [service.services.tickets.issue(ticket)[0] for _ in range(1000)]
    assert service.services.tickets.redeem(first) is None
    assert service.services.tickets.redeem(others[-1]) == ticket


@pytest.mark.parametrize("order", [{"rows": -1}, {"term": "a b"}, {"command": "a\0"}, {"rows": "many"}])
async def test_invalid_terminal_request_returns_an_error_message(
    service: ApiServiceWithShells, order: dict[str, Any]
) -> None:
    await running(service)
    async with shell(service, **order) as socket:
        assert "terminal request is invalid" in (await socket.next())["error"]
    assert not service.shells.opened


async def test_idle_shell_is_closed(service: ApiServiceWithShells, monkeypatch: pytest.MonkeyPatch) -> None:
    await running(service)
    monkeypatch.setattr(surface, "IDLE_TIMEOUT", 0.01)
    async with shell(service) as socket:
        await socket.next()
        assert "connection was closed" in (await socket.next())["error"]
        assert await socket.next() is None


async def test_stopping_service_closes_shells_with_a_message(service: ApiServiceWithShells) -> None:
    await running(service)
    async with shell(service) as socket:
        await socket.next()
        service.services.closing.set()
        assert "job continues" in (await socket.next())["error"]


async def test_only_running_replicas_have_a_shell(service: ApiServiceWithShells) -> None:
    created = await service.call("POST", JOBS, custom_job(container()))
    waiting = await service.call("POST", f"{JOB}:shell", {})
    assert (waiting.status, "is not running" in waiting.error["message"]) == (400, True)
    name = created.json["name"]
    await service.run(name)
    unknown = await service.call("POST", f"{JOB}:shell", {"replica": "worker 7"})
    assert unknown.error["details"][0]["fieldViolations"][0]["field"] == "replica"
    assert (await service.call("POST", f"{JOB}:shell", {})).status == 200
    await service.apply_events(name, ReplicaExited(1, PRIMARY, 1, exit_record(3)))
    over = await service.call("POST", f"{JOB}:shell", {})
    assert "has already finished" in over.error["message"]
    service.shells.kept[JobUid(1000), 1, PRIMARY] = autopsy(PRIMARY)
    again = await service.call("POST", f"{JOB}:shell", {})
    assert "trainshed jobs autopsy 1000 workerpool0-0" in again.error["message"]


async def test_running_custom_job_has_web_access_uris(service: ApiServiceWithShells) -> None:
    """facts/resources: the keys are `workerpool0-0` and so on. Links exist only with
    enableWebAccess and while the job runs."""
    name = await running(service)
    uris = await links(service, name)
    assert sorted(uris) == ["workerpool0-0", "workerpool1-0"]
    assert all(uri.startswith(f"{ADDRESS}/shell/#") for uri in uris.values())
    assert len(set(uris.values())) == 2
    listed = (await service.result("GET", JOBS))["customJobs"][0]
    assert listed["webAccessUris"] == uris
    await service.apply_events(name, ReplicaExited(1, PRIMARY, 1, exit_record(0)))
    assert sorted(await links(service, name)) == ["workerpool1-0"]
    await service.apply_events(name, ReplicaExited(1, WORKER, 1, exit_record(0)))
    assert await links(service, name) == {}


async def test_job_description_contains_the_web_access_uris(service: ApiServiceWithShells) -> None:
    """spec/operations#shells. Programs can read the description too, but without links."""
    name = await running(service)
    assert await described_links(service) == await links(service, name) != {}
    assert await described_links(service, PROGRAM_TOKEN) == {}
    assert await links(service, name, PROGRAM_TOKEN) == {}
    assert (await service.call("POST", f"{JOB}:shell", {}, token=PROGRAM_TOKEN)).status == 403
    await service.apply_events(name, ReplicaExited(1, PRIMARY, 1, exit_record(0)))
    assert list(await described_links(service)) == ["workerpool1-0"]


async def test_running_ml_job_has_web_access_uris(service: ApiServiceWithShells) -> None:
    """facts/resources: the keys are `master-replica-0`, `worker-replica-0`, in trainingOutput."""
    body = ml_job(
        enableWebAccess=True, scaleTier="CUSTOM", masterType="n1-standard-4",
        workerType="n1-standard-4", workerCount="1",
    )  # fmt: skip
    created = await service.result("POST", "/v1/projects/p1/jobs", body)
    name = f"projects/p1/jobs/{created['jobId']}"
    await service.run(name)
    uris = (await service.result("GET", f"/v1/{name}"))["trainingOutput"]["webAccessUris"]
    assert sorted(uris) == ["master-replica-0", "worker-replica-0"]
    assert await described_links(service) == uris


async def test_job_with_dashboard_access_shows_a_port_and_link_while_its_primary_runs(
    service: ApiServiceWithShells,
) -> None:
    """docs/coming-from-vertex: `enableDashboardAccess`."""
    made = await service.result("POST", f"{LOCATION}/customJobs", custom_job(enableDashboardAccess=True))
    assert "webAccessUris" not in made
    name, uid = made["name"], int(made["name"].rpartition("/")[2])
    await service.run(name)
    port = dashboard_port(JobUid(uid))
    expected = {f"workerpool0-0:{port}": service.services.links.console_page(JobUid(uid), str(port))}
    assert await links(service, name) == await described_links(service) == expected
    assert await links(service, name, PROGRAM_TOKEN) == {}
    await service.apply_events(name, ReplicaExited(1, PRIMARY, 1, exit_record(0)))
    assert await links(service, name) == {}


@pytest.mark.parametrize("asked_for", [True, False])
async def test_running_trials_have_web_access_uris(service: ApiServiceWithShells, asked_for: bool) -> None:
    """facts/resources: trial 1 is running, trial 2 has not started."""
    spec = tuning_job()["trialJobSpec"] | {"enableWebAccess": asked_for}
    spec |= {"enableDashboardAccess": asked_for}
    name = await create_tuning_job(service, trialJobSpec=spec)
    study, running = StudyUid(int(name.rpartition("/")[2])), TrialState.ACTIVE
    trials = (
        Trial(study, 1, running, (), START, job=JobUid(71), started=START),
        Trial(study, 2, running, (), START, job=JobUid(72)),
    )
    at_work = (RunningTrial(1, JobUid(71)), RunningTrial(2, JobUid(72)))
    await service.update_job(name, {"trials": trials}, running=at_work, next_trial=3)
    first, second = (await service.result("GET", f"/v1/{name}"))["trials"]
    assert "webAccessUris" not in second
    links = first.get("webAccessUris", {})
    dashboard = f"workerpool0-0:{dashboard_port(JobUid(71))}"
    assert sorted(links) == ["workerpool0-0", dashboard] * asked_for
    assert not asked_for or links["workerpool0-0"].startswith(f"{ADDRESS}/shell/#job=71&")


async def test_shell_link_gives_tickets_only_for_its_replica(
    service: ApiServiceWithShells, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses: list[str] = []

    async def refused_slowly(of: object, source: str) -> None:
        guesses.append(source)

    monkeypatch.setattr(authentication_limits.AuthenticationLimiter, "delay_failure", refused_slowly)
    name = await running(service)
    uris = await links(service, name)
    fields = fields_of(uris["workerpool1-0"])
    ticket = await service.call("POST", "/shell/ticket", fields, token=None)
    assert ticket.json["title"] == "workerpool1-0, job"
    [row] = await service.store.access.audit_rows("p1", None, 1)
    assert (row.record.method, row.record.resource) == ("trainshed.v1.Jobs.Shell", name)
    async with shell(service, ticket.json["token"]) as socket:
        await socket.next()
    assert service.shells.opened[0][2] == WORKER
    opened = "a user with a link of owner@trainshed.local opened a shell in workerpool1-0."
    assert opened in await shell_entries(service)
    key = fields["key"][:-1]
    for wrong in "replica=workerpool0-0", "job=1001", "key=", f"key={key}", "replica=all", "job=x":
        order = fields | dict([wrong.split("=", 1)])
        refused = await service.call("POST", "/shell/ticket", order, token=None)
        assert refused.status == 403, wrong
    assert (await service.call("POST", "/shell/ticket", {}, token=None)).status == 403
    assert len(guesses) == 7, "a brute-force attack on keys of links is slowed"
    for replica in (PRIMARY, WORKER):
        await service.apply_events(name, ReplicaExited(1, replica, 1, exit_record(0)))
    over = await service.call("POST", "/shell/ticket", fields, token=None)
    assert over.status == 400


async def test_shell_links_tickets_and_open_shells_end_when_their_user_loses_permission(
    service: ApiServiceWithShells,
) -> None:
    """Revocation during an open shell is tested in `tests/e2e/test_team.py`."""
    name = await running(service)
    token = add_user(service.tokens, "bo@corp.example", "roles/aiplatform.user", "p1")
    uri = (await links(service, name, token))["workerpool0-0"]
    fields = fields_of(uri)
    by_link = (await service.result("POST", "/shell/ticket", fields, token=None))["token"]
    unused = (await service.result("POST", f"{JOB}:shell", {}, token=token))["token"]
    async with shell(service, by_link) as socket:
        await socket.next()
        await service.keeper.change(lambda book: book.with_grants("p1", ()), "p1", "bo")
        assert "your rights have changed" in (await socket.next())["error"]
    refused = await service.call("POST", "/shell/ticket", fields, token=None)
    assert refused.status == 403
    async with shell(service, unused, command="rm -r /") as socket:
        assert "token of this shell was used" in (await socket.next())["error"]
    assert len(service.shells.opened) == 1
    for role in ROLES:
        grant = Grant("p1", role, "user:bo@corp.example")
        await service.keeper.change(lambda book, to=grant: book.with_grants("p1", {to}), "p1", "bo")
        answer = await service.call("POST", "/shell/ticket", fields, token=None)
        assert answer.status == (200 if PERMISSIONS[OPEN_SHELL] in ROLES[role] else 403), role


async def test_shell_requires_permission_to_act_as_the_service_account_of_the_job(
    service: ApiServiceWithShells,
) -> None:
    account = "trainer@p1.iam.gserviceaccount.com"
    body = custom_job(pool(), package(), enableWebAccess=True, serviceAccount=account)
    name = (await service.result("POST", JOBS, body))["name"]
    await service.run(name)
    bo = add_user(service.tokens, "bo@corp.example", "roles/aiplatform.user", "p1")
    uri = (await links(service, name, bo))["workerpool0-0"]
    link = fields_of(uri)
    service.shells.kept[JobUid(1000), 1, PRIMARY] = autopsy(PRIMARY)
    orders: tuple[dict[str, Any], ...] = ({}, {"port": "8000"}, {"autopsy": True})
    for path, order in (*(("shell", order) for order in orders), ("", link)):
        way = f"{JOB}:{path}" if path else "/shell/ticket"
        refused = await service.call("POST", way, order, token=bo)
        assert (refused.status, account in refused.error["message"]) == (403, True)
    add_user(service.tokens, "bo@corp.example", "roles/iam.serviceAccountUser", "p1")
    assert (await service.call("POST", f"{JOB}:shell", {}, token=bo)).status == 200


async def test_shells_can_be_disabled_by_the_operator(service: ApiServiceWithShells) -> None:
    name = await running(service)
    fields = fields_of((await links(service, name))["workerpool0-0"])
    service.serve(allows_shells=False)
    asking = custom_job(enableWebAccess=True)
    uid = (await service.result("POST", JOBS, asking))["name"].rpartition("/")[2]
    entries = await service.store.reader.timeline(JobUid(int(uid)))
    assert any("has disabled shells" in e.message for e in entries if e.kind == "warning")
    assert await links(service, name) == {}
    assert "has disabled shells" in (await service.call("POST", f"{JOB}:shell", {})).error["message"]
    refused = await service.call("POST", "/shell/ticket", fields, token=None)
    assert "has disabled shells" in refused.error["message"]


@pytest.mark.parametrize("name", ["", "page.js", "page.css", "xterm.js", "xterm.css", "addon-fit.js"])
async def test_shell_page_is_served_with_all_its_files(service: ApiServiceWithShells, name: str) -> None:
    """The page works without the internet and loads nothing from other hosts."""
    answer = await service.call("GET", f"/shell/{name}", token=None)
    assert answer.status == 200
    assert answer.body
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    if name in ("", "page.js", "page.css"):
        assert b"http://" not in answer.body
        assert b"https://" not in answer.body


async def test_shell_page_serves_only_its_own_files_and_rejects_path_traversal(
    service: ApiServiceWithShells,
) -> None:
    for path in ("/shell/../app.py", "/shell/page.html", "/shell/xterm/LICENSE.xterm"):
        assert (await service.call("GET", path, token=None)).status == 404
    assert (await service.call("GET", "/shell", token=None)).status == 308


async def test_autopsies_of_failed_replicas_are_listed_and_opened(service: ApiServiceWithShells) -> None:
    name = await running(service)
    await service.apply_events(name, ReplicaExited(1, WORKER, 1, exit_record(3)))
    for attempt, replica in ((1, PRIMARY), (2, PRIMARY), (2, WORKER)):
        service.shells.kept[JobUid(1000), attempt, replica] = autopsy(replica, attempt)
    described = (await service.result("GET", JOB))["autopsies"]
    assert [left["attempt"] for left in described] == [1, 2, 2]
    for body, wanted in (
        ({}, (2, PRIMARY)),
        ({"replica": "worker 0"}, (2, WORKER)),
        ({"attempt": 1}, (1, PRIMARY)),
    ):
        ticket = await service.call("POST", f"{JOB}:shell", {**body, "autopsy": True})
        async with shell(service, ticket.json["token"]) as socket:
            await socket.next()
        assert service.shells.opened[-1][1:3] == wanted
    # The shell uses the project's current buckets: those of the job's start could belong to another
    # project now.
    assert service.shells.opened[-1][-1].buckets == (("of-p1", "/data/buckets/now"),)
    assert "owner@trainshed.local opened a shell in the files of workerpool0-0." in await shell_entries(
        service
    )
    none = await service.call("POST", f"{JOB}:shell", {"autopsy": True, "replica": "worker 0", "attempt": 1})
    assert none.status == 404
    assert "workerpool1-0 of attempt 2" in none.error["message"]


async def test_autopsies_are_deleted_with_their_job(service: ApiServiceWithShells) -> None:
    name = await running(service)
    for replica in (PRIMARY, WORKER):
        service.shells.kept[JobUid(1000), 1, replica] = autopsy(replica, 1)
    await service.apply_events(name, ReplicaExited(1, PRIMARY, 1, exit_record(3)))
    await service.apply_events(name, ReplicaExited(1, WORKER, 1, exit_record(0)))
    assert len(service.shells.autopsies(JobUid(1000))) == 2
    assert (await service.call("DELETE", f"/v1/{name}")).status == 200
    assert service.shells.autopsies(JobUid(1000)) == ()
