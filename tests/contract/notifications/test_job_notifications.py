"""Notifications about the end of jobs, with a real store, a real web server and a real mail server
(docs/notifications.md)."""

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, ApiService
from tests.unit.specs_requests import custom_job, ml_job
from tests.waiting import until, until_found
from trainshed.controller.outbox import OutboxWorker
from trainshed.core.capacity import QuotaKey
from trainshed.core.catalog.quotas import GLOBAL, GPU_HOURS
from trainshed.core.errors import Unavailable
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import JobState
from trainshed.core.usage import Budget, month_of
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import NotifyTable, mail_server
from trainshed.replica.system.listening import hold_tcp
from trainshed.serve import certificates
from trainshed.store.port import Commit, LiveJob
from trainshed.store.sqlite.jobs import Intake


@dataclass
class WebhookReceiver:
    """A web server that receives webhooks. `answers` contains the next statuses; later requests get 200."""

    url: str = ""
    answers: list[int] = field(default_factory=list[int])
    requests: list[tuple[str, dict[str, str], bytes]] = field(
        default_factory=list[tuple[str, dict[str, str], bytes]]
    )


@contextmanager
def webhook_receiver() -> Generator[WebhookReceiver]:
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.answers.pop(0) if receiver.answers else 200
            # A test that sees the request may already send the next one.
            receiver.requests.append((self.path, headers, body))
            self.send_response(status)
            self.send_header("location", f"{receiver.url}/elsewhere")
            # The server answers before the end of the response, which the sender must not need.
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mailbox:
    """A mail server with TLS that authenticates the sender."""

    port: int = 0
    mails: list[Message] = field(default_factory=list[Message])
    #: For each mail: whether it arrived over TLS, and its recipients.
    how: list[tuple[bool, list[str]]] = field(default_factory=list[tuple[bool, list[str]]])

    async def handle_RCPT(self, _: Any, __: Any, envelope: Any, to: str, ___: Any) -> str:  # noqa: N802 - the library's name
        if to.startswith("gone@"):
            return "550 nobody has this address"
        envelope.rcpt_tos.append(to)
        return "250 taken"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the library's name
        self.mails.append(BytesParser(policy=default).parsebytes(envelope.content))
        self.how.append((session.ssl is not None, envelope.rcpt_tos))
        return "250 taken"


@asynccontextmanager
async def mailbox(context: ssl.SSLContext, password: bytes) -> AsyncGenerator[Mailbox]:
    """Run a mail server with the TLS `context`. Senders need TLS and the password of `trainshed`."""
    box = Mailbox()

    def authenticate_sender(_: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
        return AuthResult(success=data == LoginPassword(b"trainshed", password), handled=False)

    def session() -> SMTP:
        return SMTP(
            box,
            hostname="mail.example.org",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=authenticate_sender,
        )

    server = await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()


SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
ENVIRON = {"HOOK": SECRET}
MINUTE = 60 * 10**9


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ApiService]:
    built = ApiService(tmp_path)
    built.serve(settings=replace(built.services.settings, notify=("ops", "team")))
    yield built
    built.close()


@pytest.fixture
def ops() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


def worker(service: ApiService, *tables: NotifyTable, **more: Any) -> OutboxWorker:
    senders = Senders(tables, more.pop("smtp", None), service.now, ENVIRON, more.pop("trust", None))
    return OutboxWorker(
        senders,
        service.store.notifications,
        service.store.intake,
        service.now,
        service.services.meters,
        page="https://train.example.org",
    )


@asynccontextmanager
async def running_outbox(outbox: OutboxWorker) -> AsyncGenerator[OutboxWorker]:
    outbox.start()
    try:
        yield outbox
    finally:
        await outbox.close()


async def create_failed_job(service: ApiService, outbox: OutboxWorker, **labels: str) -> str:
    """Create a job that fails, commit its end like the controller, and return its uid."""
    body = custom_job() | {"labels": labels}
    answer = await service.result("POST", f"{LOCATION}/customJobs", body)
    uid = answer["name"].rpartition("/")[2]
    live = await service.store.ledger.load(int(uid))  # pyright: ignore[reportArgumentType] # a uid
    assert isinstance(live, LiveJob)
    over = replace(
        live.job,
        state=JobState.FAILED,
        ended=service.clock,
        error=JobError(3, "The replica workerpool0-0 exited with a non-zero status of 1. ✗"),
    )
    commit = Commit(over, live.generation)  # pyright: ignore[reportArgumentType] # one of the kinds
    epoch = await service.store.ledger.acquire("test")
    await service.store.ledger.commit(epoch, replace(commit, notifications=outbox.notifications_of(commit)))
    outbox.wake()
    return uid


async def timeline_message(service: ApiService, uid: str, kind: str) -> str:
    """Wait for a timeline entry of this kind, and return its message."""

    async def messages() -> list[str]:
        timeline = await service.store.reader.timeline(int(uid))  # pyright: ignore[reportArgumentType] # a uid
        return [entry.message for entry in timeline if entry.kind == kind]

    return (await until_found(messages))[0]


async def wait_for_two_attempts(service: ApiService, ops: WebhookReceiver) -> None:
    async def has_two_attempts() -> bool:
        (waiting,) = await service.store.notifications.waiting(2)
        # The attempt is counted before the request is sent.
        return waiting.tries == 2 == len(ops.requests)

    await until_found(has_two_attempts)


async def wait_until_deleted(service: ApiService, but: int = 0) -> None:
    """Wait until the outbox is empty. It deletes a notification after sending it, so a crash in
    between sends it again."""

    async def is_deleted() -> bool:
        return (await service.store.notifications.count())[0] <= but

    await until_found(is_deleted)


async def test_webhook_request_has_a_verifiable_signature(service: ApiService, ops: WebhookReceiver) -> None:
    outbox = worker(service, NotifyTable("ops", f"{ops.url}/train?a=1", "HOOK"))
    async with running_outbox(outbox):
        uid = await create_failed_job(service, outbox, **{"trainshed-notify": "ops"})
        assert await timeline_message(service, uid, "notified") == "ops was notified that the job has failed."
        await wait_until_deleted(service)
    ((path, headers, body),) = ops.requests
    assert (path, headers["content-type"]) == ("/train?a=1", "application/json")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.new(b"k" * 24, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{right}"
    assert int(headers["webhook-timestamp"]) == service.clock // 10**9
    content = json.loads(body)
    assert (content["type"], content["data"]["state"]) == ("job.failed", "FAILED")
    assert content["data"]["page"] == f"https://train.example.org/jobs/{uid}"
    assert content["data"]["error"]["message"].endswith("✗")


async def test_rejected_webhook_is_retried_and_shown_on_the_timeline(
    service: ApiService, ops: WebhookReceiver
) -> None:
    """The retry continues after a restart of the service."""
    ops.answers = [503, 302]
    table = NotifyTable("ops", ops.url)
    outbox = worker(service, table)
    async with running_outbox(outbox):
        uid = await create_failed_job(service, outbox, **{"trainshed-notify": "ops"})
        delayed = await timeline_message(service, uid, "notify_delayed")
        assert f"{ops.url} responded with status 503 Service Unavailable" in delayed
    service.clock += MINUTE
    async with running_outbox(worker(service, table)):
        await wait_for_two_attempts(service, ops)
    assert {path for path, _, _ in ops.requests} == {"/"}, "a redirect is not followed"
    service.clock += MINUTE
    async with running_outbox(worker(service, table)):
        await timeline_message(service, uid, "notified")
    ids = [headers["webhook-id"] for _, headers, _ in ops.requests]
    assert len(ids) == 3 and len(set(ids)) == 1
    assert len({body for _, _, body in ops.requests}) == 1
    assert all("webhook-signature" not in headers for _, headers, _ in ops.requests)


async def test_notification_is_sent_even_if_the_clock_was_set_back_after_the_job_ended(
    service: ApiService, ops: WebhookReceiver
) -> None:
    outbox = worker(service, NotifyTable("ops", ops.url))
    service.clock += 7 * 24 * 60 * MINUTE
    uid = await create_failed_job(service, outbox, **{"trainshed-notify": "ops"})
    service.clock -= 7 * 24 * 60 * MINUTE
    async with running_outbox(outbox):
        assert await timeline_message(service, uid, "notified")


@pytest.mark.parametrize(("key", "why"), [(None, "Connection refused"), ("GONE", "$GONE")])
async def test_notification_is_dropped_after_failing_for_a_day(
    service: ApiService, key: str | None, why: str
) -> None:
    # Nothing listens on this port, and no other process can bind it.
    held = hold_tcp("127.0.0.1", 0)
    table = NotifyTable("ops", f"http://127.0.0.1:{held.getsockname()[1]}", key)
    outbox = worker(service, table)
    async with running_outbox(outbox):
        uid = await create_failed_job(service, outbox, **{"trainshed-notify": "ops"})
        assert why in await timeline_message(service, uid, "notify_delayed")
    service.clock += 24 * 60 * MINUTE
    async with running_outbox(worker(service, table)):
        assert "The service stopped after 2 tries" in await timeline_message(service, uid, "notify_failed")
        await wait_until_deleted(service)


async def test_sent_notification_is_not_repeated_if_the_store_cannot_record_the_delivery(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sent notification is not sent again in every pass while the store cannot record it. A pass
    starts only after the previous one has ended."""
    sent: list[tuple[str, str]] = []
    answered = asyncio.Event()

    async def send(target: str, id_: str, _: str) -> None:
        sent.append((target, id_))
        if target == "team":
            await answered.wait()

    tables = [NotifyTable(target, "https://a", jobs="all") for target in ("ops", "team")]
    outbox = worker(service, *tables)
    for _ in range(2):
        await create_failed_job(service, outbox)
    monkeypatch.setattr("trainshed.controller.outbox._DISK_PAUSE", 0.001)
    monkeypatch.setattr(Senders, "send", staticmethod(send))
    faults = chain((Unavailable("the disk is full"),), repeat(None))
    monkeypatch.setattr(Intake, "add_timeline_entry", AsyncMock(side_effect=faults))
    async with running_outbox(outbox):
        await asyncio.sleep(0.1)
        answered.set()
        await wait_until_deleted(service, but=1)
    assert len(sent) == 4 == len(set(sent))


async def test_slow_notification_target_does_not_delay_new_notifications(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def send(target: str, _: str, __: str) -> None:
        sent.append(target)
        if target == "slow":
            service.clock += MINUTE
        if len(sent) == 1:
            await create_failed_job(service, outbox, **{"trainshed-notify": "ops"})

    slow, quick = NotifyTable("slow", "https://a", jobs="all"), NotifyTable("ops", "https://b")
    outbox = worker(service, slow, quick)
    for _ in range(3):
        await create_failed_job(service, outbox)
    monkeypatch.setattr(Senders, "send", staticmethod(send))
    async with running_outbox(outbox):
        await wait_until_deleted(service)
    assert sent[:2] == ["slow", "ops"]


async def test_mail_is_sent_over_tls_with_authentication(service: ApiService, tmp_path: Path) -> None:
    made = certificates.prepare_own_certificates(tmp_path / "tls", "127.0.0.1", time.time())
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shows.load_cert_chain(made.chain, made.key)
    trusts = ssl.create_default_context(cafile=str(made.ca))
    async with mailbox(shows, b"geheim") as box:
        server = mail_server(f"smtp://trainshed@127.0.0.1:{box.port}/train@example.org", "geheim")
        assert server is not None and server.tls == "none", "nobody listens within a machine"
        smtp = dataclasses.replace(server, tls="starttls")
        table = NotifyTable("team", mail=("a@example.org", "gone@example.org", "b@example.org"))
        outbox = worker(service, table, smtp=smtp, trust=trusts)
        async with running_outbox(outbox):
            uid = await create_failed_job(service, outbox, **{"trainshed-notify": "team"})
            notified = await timeline_message(service, uid, "notified")
            assert "does not accept mail for gone@example.org" in notified, "others would get it again"
        (mail,) = box.mails
        assert box.how == [(True, ["a@example.org", "b@example.org"])]
        assert (mail["subject"], mail["from"]) == ("job failed", "Trainshed <train@example.org>")
        assert isinstance(mail, EmailMessage)
        text = str(mail.get_content())
        assert "exited with a non-zero status of 1. ✗" in text
        assert f"trainshed jobs logs {uid}" in text
        # The password is not sent to a server with an untrusted certificate.
        distrusting = worker(service, table, smtp=smtp)
        async with running_outbox(distrusting):
            other = await create_failed_job(service, distrusting, **{"trainshed-notify": "team"})
            assert "certificate" in await timeline_message(service, other, "notify_delayed")
    assert len(box.mails) == 1


async def test_hanging_notification_target_does_not_block_other_targets_or_jobs(
    service: ApiService, ops: WebhookReceiver
) -> None:
    held: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    tables = NotifyTable("hangs", f"http://127.0.0.1:{port}"), NotifyTable("ops", ops.url)
    outbox = worker(service, *(replace(table, jobs="all") for table in tables))
    async with running_outbox(outbox):
        uid = await create_failed_job(service, outbox)
        assert await timeline_message(service, uid, "notified") == "ops was notified that the job has failed."
        # Closing the listener releases the waiting thread.
        listener.close()
        for writer in held:
            writer.close()


async def test_job_with_unknown_notification_target_is_rejected(service: ApiService) -> None:
    for label in ("nobody", "ops_nobody", "_"):
        for path, body in ((f"{LOCATION}/customJobs", custom_job()), ("/v1/projects/p1/jobs", ml_job())):
            answer = await service.call("POST", path, body | {"labels": {"trainshed-notify": label}})
            assert answer.status == 400, answer.body
            assert "Use ops, team" in str(answer.body, "utf-8")
    body = ml_job() | {"labels": {"trainshed-notify": "ops_team"}}
    assert (await service.call("POST", "/v1/projects/p1/jobs", body)).status == 200


async def test_budget_notification_is_sent_once_across_restarts(
    service: ApiService, ops: WebhookReceiver
) -> None:
    table = NotifyTable("ops", ops.url, budgets=(50, 90))
    budget = Budget(QuotaKey("p", GLOBAL, GPU_HOURS), 10, 6, marks=(50, 90))
    month = month_of(service.clock)[0]
    taken: list[tuple[str, dict[str, str], bytes]] = []
    for amounts in ((6, 6), (6, 9.5)):
        outbox = worker(service, table)
        assert outbox.marks == (50, 90)
        async with running_outbox(outbox):
            for used in amounts:
                outbox.notify_budgets((replace(budget, usage=used),), month)
            await until(lambda: ops.requests)
            await wait_until_deleted(service)
        taken += ops.requests
        ops.requests.clear()
    events = [json.loads(body) for _, _, body in taken]
    assert [event["data"]["percent"] for event in events] == [50, 90]
    assert events[0]["type"] == "budget.reached"
    assert taken[0][1]["webhook-id"].startswith("budget-")
