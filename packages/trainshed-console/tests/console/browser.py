"""The console over a real store, and a minimal browser with credentials, forms and the Origin header."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace

from tests.contract.api.api_service import SIGN_IN_KEY, Answer, ApiService, Lines
from trainshed.access.issuers import Issuer
from trainshed.access.tokens import digest_of
from trainshed_console.application import ConsoleApplication
from trainshed_console.in_process import InProcessCaller
from trainshed_console.sessions import Sessions
from trainshed_console.signing_in import SigningIn
from trainshed_console.views import FIRST_SEGMENTS, Facts
from trainshed_pipelines.addition import new_addition as pipelines_addition

ADDRESS = "http://trainshed.example"
HTML = ("accept", "text/html,*/*;q=0.8")


class ConsoleService(ApiService):
    """A service without an engine, with its console. It serves pipelines, but starts no task."""

    def __init__(self, directory: Path, *, issuers: Sequence[Issuer] = ()) -> None:
        super().__init__(directory, issuers=issuers)
        pipelines = pipelines_addition(self.addition_context(directory))
        handlers = {**self.registry.handlers, **pipelines.handlers}
        self.registry = replace(self.registry, handlers=handlers)
        self.directory = directory
        self.new_console()

    def new_console(self, address: str = ADDRESS) -> None:
        """Create the console again, as a starting service does."""
        self.sessions = Sessions(
            self.directory / "sessions.json",
            self.issuers.authenticate,
            self.tokens,
            self.now,
            self.keeper.record,
        )
        back = f"{address}/login/back"
        signing_in = SigningIn(self.issuers, self.keeper, SIGN_IN_KEY, back, self.now)
        console = ConsoleApplication(
            self.sessions,
            InProcessCaller(self.services, self.registry),
            self.directory / "nobody-listens.sock",
            signing_in=signing_in,
            facts=Facts("0.0.1", "p1", "us-central1", "bucket", address),
            now=self.now,
            closing=self.services.closing,
        )
        mounts = dict.fromkeys(FIRST_SEGMENTS, console)
        self.app = self.application(mounts)

    def link(self) -> str:
        """Return a sign-in link for the service's owner, as `trainshed up` prints it."""
        code = self.sessions.link_code(digest_of(self.token))
        return Facts("", "", "", "", ADDRESS).login_link(code)

    @asynccontextmanager
    async def events(self, path: str, headers: list[tuple[str, str]]) -> AsyncGenerator["Events"]:
        """Open an event stream. Leaving the context closes the connection."""
        events = Events()
        scope = self._scope("GET", path, None, headers)
        task = asyncio.create_task(self.app(scope, events.receive, events.send))
        try:
            yield events
        finally:
            events.hang_up()
            await task


class Events(Lines):
    """The browser's side of an event stream."""

    _text = b""

    async def next(self, name: str = "") -> Any:
        """Return the data of the next event with this name."""
        while True:
            while b"\n\n" in self._text:
                event, _, self._text = self._text.partition(b"\n\n")
                if event.startswith(f"event: {name}\n".encode()):
                    return json.loads(event.partition(b"data: ")[2])
            chunk = await asyncio.wait_for(self._arrived.get(), 60)
            assert chunk is not None, "the stream has ended"
            self._text += chunk


class Browser:
    """A browser that keeps the credentials of a session and does not follow redirects."""

    def __init__(self, service: ConsoleService) -> None:
        self._service = service
        self.session = ""

    @property
    def credentials(self) -> list[tuple[str, str]]:
        """The Authorization header of the browser."""
        text = b64encode(f"session:{self.session}".encode()).decode()
        return [("authorization", f"Basic {text}")] if self.session else []

    async def sign_in(self, *more: tuple[str, str], **form: str) -> Answer:
        """Sign in as the script of the sign-in page does."""
        answer = await self.post("/login", ("accept", "application/json"), *more, **form)
        if answer.status == 200:
            self.session = answer.json.get("session", self.session)
        return answer

    async def open(self, link: str) -> Answer:
        """Sign in with the code of a link, as the script of the sign-in page does."""
        return await self.sign_in(code=link.partition("code=")[2])

    async def get(self, path: str, *more: tuple[str, str]) -> Answer:
        """Request a page."""
        return await self._send("GET", path, b"", [HTML, *more])

    async def post(self, path: str, *more: tuple[str, str], **form: str) -> Answer:
        """Send a form of a console page."""
        headers = [HTML, ("origin", ADDRESS), *more]
        kept = {name: value for name, value in dict(headers).items() if value}
        return await self._send("POST", path, urlencode(form).encode(), list(kept.items()))

    async def _send(self, method: str, path: str, body: bytes, headers: list[tuple[str, str]]) -> Answer:
        sent = [*headers, *(pair for pair in self.credentials if pair[0] not in dict(headers))]
        return await self._service.call(method, path, body, token=None, headers=sent)


def curves_of(answer: Answer) -> list[Any]:
    """Return the data of the charts of a page."""
    data = re.findall(r'data-curves="(.*?)"', answer.body.decode())
    return [json.loads(unescape(text)) for text in data]


def text_of(answer: Answer) -> str:
    """Return the visible text of a page, without tags and with white space collapsed."""
    html = answer.body.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
