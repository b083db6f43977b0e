"""Somebody is told how a job ends: over a real store, a real web server and a real mail server
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

from tests.contract.api.house import LOCATION, House
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
class Hook:
    """A web server that takes webhooks. `answers`: its next statuses, then 200."""

    url: str = ""
    answers: list[int] = field(default_factory=list[int])
    taken: list[tuple[str, dict[str, str], bytes]] = field(
        default_factory=list[tuple[str, dict[str, str], bytes]]
    )


@contextmanager
def hook() -> Generator[Hook]:
    receiver = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.answers.pop(0) if receiver.answers else 200
            receiver.taken.append((self.path, headers, body))  # Whoever sees it may send the next.
            self.send_response(status)
            self.send_header("location", f"{receiver.url}/elsewhere")
            self.send_header("transfer-encoding", "chunked")  # Nobody needs what does not come.
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
    """A mail server with TLS that wants to know who sends."""

    port: int = 0
    mails: list[Message] = field(default_factory=list[Message])
    #: How each came: whether by TLS, and to whom.
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
    """`context`: what it shows. Nobody may send without TLS and the password of `trainshed`."""
    box = Mailbox()

    def signs_in(_: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
        return AuthResult(success=data == LoginPassword(b"trainshed", password), handled=False)

    def session() -> SMTP:
        return SMTP(
            box,
            hostname="mail.example.org",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=signs_in,
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
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    built.serve(settings=replace(built.services.settings, notify=("ops", "team")))
    yield built
    built.close()


@pytest.fixture
def ops() -> Iterator[Hook]:
    with hook() as receiver:
        yield receiver


def worker(house: House, *tables: NotifyTable, **more: Any) -> OutboxWorker:
    senders = Senders(tables, more.pop("smtp", None), house.now, ENVIRON, more.pop("trust", None))
    return OutboxWorker(
        senders,
        house.store.notifications,
        house.store.intake,
        house.now,
        house.services.meters,
        page="https://train.example.org",
    )


@asynccontextmanager
async def at_work(outbox: OutboxWorker) -> AsyncGenerator[OutboxWorker]:
    outbox.start()
    try:
        yield outbox
    finally:
        await outbox.close()


async def failed(house: House, outbox: OutboxWorker, **labels: str) -> str:
    """The uid of a new job that fails, and whose end is committed as the controller commits it."""
    body = custom_job() | {"labels": labels}
    answer = await house.result("POST", f"{LOCATION}/customJobs", body)
    uid = answer["name"].rpartition("/")[2]
    live = await house.store.ledger.load(int(uid))  # pyright: ignore[reportArgumentType] # a uid
    assert isinstance(live, LiveJob)
    over = replace(
        live.job,
        state=JobState.FAILED,
        ended=house.clock,
        error=JobError(3, "The replica workerpool0-0 exited with a non-zero status of 1. ✗"),
    )
    commit = Commit(over, live.generation)  # pyright: ignore[reportArgumentType] # one of the kinds
    epoch = await house.store.ledger.acquire("test")
    await house.store.ledger.commit(epoch, replace(commit, notifications=outbox.of(commit)))
    outbox.wake()
    return uid


async def noted(house: House, uid: str, kind: str) -> str:
    """The message of the timeline's entry of this kind, when it is there."""

    async def messages() -> list[str]:
        timeline = await house.store.reader.timeline(int(uid))  # pyright: ignore[reportArgumentType] # a uid
        return [entry.message for entry in timeline if entry.kind == kind]

    return (await until_found(messages))[0]


async def until_tried_twice(house: House, ops: Hook) -> None:
    async def tried() -> bool:
        (waiting,) = await house.store.notifications.waiting(2)
        return waiting.tries == 2 == len(ops.taken)  # It is counted before it is sent.

    await until_found(tried)


async def until_forgotten(house: House, but: int = 0) -> None:
    """It is told first, and forgotten then: who dies in between tells it once more."""

    async def forgotten() -> bool:
        return (await house.store.notifications.count())[0] <= but

    await until_found(forgotten)


async def test_a_webhook_is_told_with_a_signature_to_check(house: House, ops: Hook) -> None:
    outbox = worker(house, NotifyTable("ops", f"{ops.url}/train?a=1", "HOOK"))
    async with at_work(outbox):
        uid = await failed(house, outbox, **{"trainshed-notify": "ops"})
        assert await noted(house, uid, "notified") == "ops was notified that the job has failed."
        await until_forgotten(house)
    ((path, headers, body),) = ops.taken
    assert (path, headers["content-type"]) == ("/train?a=1", "application/json")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.new(b"k" * 24, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{right}"
    assert int(headers["webhook-timestamp"]) == house.clock // 10**9
    content = json.loads(body)
    assert (content["type"], content["data"]["state"]) == ("job.failed", "FAILED")
    assert content["data"]["page"] == f"https://train.example.org/jobs/{uid}"
    assert content["data"]["error"]["message"].endswith("✗")


async def test_who_refuses_it_is_tried_again_and_the_job_says_so(house: House, ops: Hook) -> None:
    """Also across a restart of the service."""
    ops.answers = [503, 302]
    table = NotifyTable("ops", ops.url)
    outbox = worker(house, table)
    async with at_work(outbox):
        uid = await failed(house, outbox, **{"trainshed-notify": "ops"})
        delayed = await noted(house, uid, "notify_delayed")
        assert f"{ops.url} answers 503 Service Unavailable" in delayed
    house.clock += MINUTE
    async with at_work(worker(house, table)):
        await until_tried_twice(house, ops)
    assert {path for path, _, _ in ops.taken} == {"/"}, "a redirect is not followed"
    house.clock += MINUTE
    async with at_work(worker(house, table)):
        await noted(house, uid, "notified")
    ids = [headers["webhook-id"] for _, headers, _ in ops.taken]
    assert len(ids) == 3 and len(set(ids)) == 1
    assert len({body for _, _, body in ops.taken}) == 1
    assert all("webhook-signature" not in headers for _, headers, _ in ops.taken)


async def test_what_was_stored_while_the_clock_was_ahead_is_sent(house: House, ops: Hook) -> None:
    outbox = worker(house, NotifyTable("ops", ops.url))
    house.clock += 7 * 24 * 60 * MINUTE
    uid = await failed(house, outbox, **{"trainshed-notify": "ops"})
    house.clock -= 7 * 24 * 60 * MINUTE
    async with at_work(outbox):
        assert await noted(house, uid, "notified")


@pytest.mark.parametrize(("key", "why"), [(None, "Connection refused"), ("GONE", "$GONE")])
async def test_it_is_given_up_after_a_day(house: House, key: str | None, why: str) -> None:
    held = hold_tcp("127.0.0.1", 0)  # Where nobody listens, and no other test can meanwhile.
    table = NotifyTable("ops", f"http://127.0.0.1:{held.getsockname()[1]}", key)
    outbox = worker(house, table)
    async with at_work(outbox):
        uid = await failed(house, outbox, **{"trainshed-notify": "ops"})
        assert why in await noted(house, uid, "notify_delayed")
    house.clock += 24 * 60 * MINUTE
    async with at_work(worker(house, table)):
        assert "The service stopped after 2 tries" in await noted(house, uid, "notify_failed")
        await until_forgotten(house)


async def test_a_store_that_fails_amid_a_pass_has_nothing_sent_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent is not sent with each pass until that can be noted, and no pass begins before the last
    one has ended."""
    sent: list[tuple[str, str]] = []
    answered = asyncio.Event()

    async def send(target: str, id_: str, _: str) -> None:
        sent.append((target, id_))
        if target == "team":
            await answered.wait()

    tables = [NotifyTable(target, "https://a", jobs="all") for target in ("ops", "team")]
    outbox = worker(house, *tables)
    for _ in range(2):
        await failed(house, outbox)
    monkeypatch.setattr("trainshed.controller.outbox._DISK_PAUSE", 0.001)
    monkeypatch.setattr(Senders, "send", staticmethod(send))
    faults = chain((Unavailable("the disk is full"),), repeat(None))
    monkeypatch.setattr(Intake, "tell", AsyncMock(side_effect=faults))
    async with at_work(outbox):
        await asyncio.sleep(0.1)
        answered.set()
        await until_forgotten(house, but=1)
    assert len(sent) == 4 == len(set(sent))


async def test_what_comes_meanwhile_does_not_wait_for_a_slow_target(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def send(target: str, _: str, __: str) -> None:
        sent.append(target)
        if target == "slow":
            house.clock += MINUTE
        if len(sent) == 1:
            await failed(house, outbox, **{"trainshed-notify": "ops"})

    slow, quick = NotifyTable("slow", "https://a", jobs="all"), NotifyTable("ops", "https://b")
    outbox = worker(house, slow, quick)
    for _ in range(3):
        await failed(house, outbox)
    monkeypatch.setattr(Senders, "send", staticmethod(send))
    async with at_work(outbox):
        await until_forgotten(house)
    assert sent[:2] == ["slow", "ops"]


async def test_mail_goes_over_tls_to_a_server_that_knows_the_sender(
    house: House, tmp_path: Path
) -> None:
    made = certificates.own(tmp_path / "tls", "127.0.0.1", time.time())
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shows.load_cert_chain(made.chain, made.key)
    trusts = ssl.create_default_context(cafile=str(made.ca))
    async with mailbox(shows, b"geheim") as box:
        server = mail_server(f"smtp://trainshed@127.0.0.1:{box.port}/train@example.org", "geheim")
        assert server is not None and server.tls == "none", "nobody listens within a machine"
        smtp = dataclasses.replace(server, tls="starttls")
        table = NotifyTable("team", mail=("a@example.org", "gone@example.org", "b@example.org"))
        outbox = worker(house, table, smtp=smtp, trust=trusts)
        async with at_work(outbox):
            uid = await failed(house, outbox, **{"trainshed-notify": "team"})
            notified = await noted(house, uid, "notified")
            assert "does not accept mail for gone@example.org" in notified, (
                "others would get it again"
            )
        (mail,) = box.mails
        assert box.how == [(True, ["a@example.org", "b@example.org"])]
        assert (mail["subject"], mail["from"]) == ("job failed", "Trainshed <train@example.org>")
        assert isinstance(mail, EmailMessage)
        text = str(mail.get_content())
        assert "exited with a non-zero status of 1. ✗" in text
        assert f"trainshed jobs logs {uid}" in text
        # A server that nobody vouches for is not told the password.
        careful = worker(house, table, smtp=smtp)
        async with at_work(careful):
            other = await failed(house, careful, **{"trainshed-notify": "team"})
            assert "certificate" in await noted(house, other, "notify_delayed")
    assert len(box.mails) == 1


async def test_a_target_that_hangs_holds_up_no_others_and_no_jobs(house: House, ops: Hook) -> None:
    held: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    tables = NotifyTable("hangs", f"http://127.0.0.1:{port}"), NotifyTable("ops", ops.url)
    outbox = worker(house, *(replace(table, jobs="all") for table in tables))
    async with at_work(outbox):
        uid = await failed(house, outbox)
        assert await noted(house, uid, "notified") == "ops was notified that the job has failed."
        # Lets its thread go.
        listener.close()
        for writer in held:
            writer.close()


async def test_jobs_name_targets_that_there_are(house: House) -> None:
    for label in ("nobody", "ops_nobody", "_"):
        for path, body in (
            (f"{LOCATION}/customJobs", custom_job()),
            ("/v1/projects/p1/jobs", ml_job()),
        ):
            answer = await house.call("POST", path, body | {"labels": {"trainshed-notify": label}})
            assert answer.status == 400, answer.body
            assert "there are ops, team" in str(answer.body, "utf-8")
    body = ml_job() | {"labels": {"trainshed-notify": "ops_team"}}
    assert (await house.call("POST", "/v1/projects/p1/jobs", body)).status == 200


async def test_a_budget_is_heard_of_once_also_by_a_service_that_starts_again(
    house: House, ops: Hook
) -> None:
    table = NotifyTable("ops", ops.url, budgets=(50, 90))
    budget = Budget(QuotaKey("p", GLOBAL, GPU_HOURS), 10, 6, marks=(50, 90))
    month = month_of(house.clock)[0]
    taken: list[tuple[str, dict[str, str], bytes]] = []
    for amounts in ((6, 6), (6, 9.5)):
        outbox = worker(house, table)
        assert outbox.marks == (50, 90)
        async with at_work(outbox):
            for used in amounts:
                outbox.budgets_reached((replace(budget, used=used),), month)
            await until(lambda: ops.taken)
            await until_forgotten(house)
        taken += ops.taken
        ops.taken.clear()
    events = [json.loads(body) for _, _, body in taken]
    assert [event["data"]["percent"] for event in events] == [50, 90]
    assert events[0]["type"] == "budget.reached"
    assert taken[0][1]["webhook-id"].startswith("budget-")
