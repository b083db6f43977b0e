"""Who is told: a web server and a mail server of the test, on loopback."""

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword


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
            receiver.taken.append((self.path, headers, body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            self.send_header("location", f"{receiver.url}/elsewhere")
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

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the library's name
        self.mails.append(BytesParser(policy=default).parsebytes(envelope.content))
        self.how.append((session.ssl is not None, envelope.rcpt_tos))
        return "250 taken"


@asynccontextmanager
async def mailbox(context: ssl.SSLContext, password: bytes) -> AsyncGenerator[Mailbox]:
    """`context`: what it shows. Nobody may send without TLS and the password of `trainshed`."""
    box = Mailbox()

    def signs_in(_: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
        good = data == LoginPassword(b"trainshed", password)
        return AuthResult(success=good, handled=False)

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
