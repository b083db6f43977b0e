"""The storage API without a socket: fixtures that call the application like a server, and helpers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.buckets.authentication import CALLER, LISTENER, Authenticator, Listener
from trainshed.buckets.callers import Caller, Reach, encode_caller
from trainshed.buckets.content import Digest
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.notices import Notices
from trainshed.buckets.rest.app import BucketsApp
from trainshed.httpd.hosts import Hosts
from trainshed.httpd.messages import Message

OWNER = Caller("owner@test", {"": Reach.ADMIN})
UPLOAD = "/upload/storage/v1/b/bucket/o"
ITEM = "/storage/v1/b/bucket/o/"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw_names: list[bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Answer]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = ObjectStore(tmp_path / "store")
    made.catalog.create("bucket")
    return made


class OpenAuthenticator(Authenticator):
    """Treats all callers at the port as the owner, and all programs as running."""

    def __init__(self) -> None:
        pass

    async def caller(self, authorization: str | None, key: str | None) -> Caller:
        return OWNER

    def check(self, program: JobClaims) -> None:
        pass


@pytest.fixture
def ask(store: ObjectStore, tmp_path: Path) -> Ask:
    lenient = OpenAuthenticator()
    tokens = JobTokens.open(tmp_path / "jobs.key", time.time_ns)
    metadata = Metadata(tokens, lenient.check, Notices())
    app = BucketsApp(store, lenient, hosts=Hosts(("h",)), metadata=metadata)

    def call(
        method: str,
        target: str,
        body: bytes | list[bytes] | dict[str, Any] = b"",
        *,
        gone: bool = False,
        listener: Listener = Listener.GATEWAY,
        caller: Caller = OWNER,
        **headers: str,
    ) -> Answer:
        path, _, query = target.partition("?")
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        blocks = list(body) if isinstance(body, list) else [body]
        sent: list[Message] = []

        async def receive() -> Message:
            if not blocks:
                if not gone:
                    await asyncio.Event().wait()  # a connected client that sends nothing more
                return {"type": "http.disconnect"}
            block = blocks.pop(0)
            return {"type": "http.request", "body": block, "more_body": bool(blocks) or gone}

        async def send(message: Message) -> None:
            sent.append(message)

        fields = {"host": "h:1", **{key.replace("_", "-"): text for key, text in headers.items()}}
        if listener is Listener.GATEWAY:
            fields["x-trainshed-identity"] = encode_caller(caller).decode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(key.encode(), text.encode()) for key, text in fields.items()],
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("h", 1),
            "state": {LISTENER: listener, CALLER: caller},
        }
        asyncio.run(app(scope, receive, send))
        if not sent:
            return Answer(0, {}, [], b"")
        raw = cast("list[tuple[bytes, bytes]]", sent[0]["headers"])
        return Answer(
            sent[0]["status"],
            {name.lower().decode().lower(): value.decode() for name, value in raw},
            [name for name, _ in raw],
            b"".join(message.get("body", b"") for message in sent[1:]),
        )

    return call


def put_object(ask: Ask, name: str, body: bytes, **headers: str) -> Any:
    answer = ask("POST", f"{UPLOAD}?uploadType=media&name={name}", body, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def crc(content: bytes) -> str:
    digest = Digest()
    digest.update(content)
    return digest.sums().crc32c


def md5(content: bytes) -> str:
    digest = Digest()
    digest.update(content)
    return digest.sums().md5
