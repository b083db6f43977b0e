"""Sends notifications to the targets in the settings. Webhooks are signed as in the Standard Webhooks
specification. Mail is sent by SMTP.

Each attempt runs in its own thread. Redirects are not followed, so that only the operator decides which hosts
the service calls (SSRF). Only the threads import the HTTP and mail libraries, because few services send
notifications.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trainshed.core.notifications import Target, mail_of
from trainshed.notifying.targets import NotifyTable, NotSent, Smtp, key_of

if TYPE_CHECKING:
    from email.message import EmailMessage


class Senders:
    """Sends the notifications of one service. `now`: returns ns since the epoch. `context`: the trusted TLS
    authorities; None = those of the system."""

    def __init__(
        self,
        tables: Sequence[NotifyTable],
        smtp: Smtp | None,
        now: Callable[[], int],
        environ: Mapping[str, str] = os.environ,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._smtp = smtp
        self._now = now
        self._environ = environ
        self._context = context
        # Use a separate pool, because targets that hang block its threads.
        self._threads = ThreadPoolExecutor(4, "notifying")

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(table.target for table in self._tables.values())

    async def send(self, target: str, id_: str, content: str) -> str | None:
        """Make one attempt to send a notification. `id_`: the notification's ID, the same for each attempt.
        Return None if all addresses were reached. Otherwise, return the rejected addresses, as the rest of a
        sentence. Raises NotSent if no address was reached."""
        table = self._tables.get(target)
        if table is None:
            raise NotSent(f"the target {target!r} is no longer in the service's settings")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._send, table, id_, content)

    def _send(self, table: NotifyTable, id_: str, content: str) -> str | None:
        at = self._now() // 10**9
        if table.webhook:
            body = content.encode()
            secret = self._environ.get(table.secret_env) if table.secret_env else None
            if table.secret_env and not secret:
                raise NotSent(
                    f"the variable ${table.secret_env} with the key for signatures is not set; set it, and "
                    "restart the service"
                )
            headers = signature_headers(id_, at, body, secret)
            post(table.webhook, body, headers, self._context)
            return None
        if self._smtp is None:
            raise NotSent("no mail server is configured (setting smtp)")
        mail = _mail(self._smtp.sender, table.mail, mail_of(json.loads(content)), id_, at)
        return _send_mail(self._smtp, mail, self._context)


_TIMEOUT: Final = 10.0
"""Timeout in seconds of each step: connecting, sending, and waiting for the response."""
_MAIL_TIMEOUT: Final = 20.0


def signature_headers(id_: str, at: int, body: bytes, secret: str | None) -> dict[str, str]:
    """Return the headers of a webhook request. `id_`: the notification's ID, the same for each attempt. `at`:
    the time of sending in seconds since the epoch. `secret`: the key of the signature, the HMAC-SHA256 of
    `id.timestamp.body`; without it, the request is not signed."""
    headers = {"webhook-id": id_, "webhook-timestamp": str(at)}
    if secret:
        signature = hmac.new(key_of(secret), f"{id_}.{at}.".encode() + body, hashlib.sha256)
        headers["webhook-signature"] = "v1," + base64.b64encode(signature.digest()).decode()
    return headers


def post(url: str, body: bytes, headers: dict[str, str], context: ssl.SSLContext | None) -> None:
    """Post JSON. Raises NotSent unless the response has a status of 2xx. `context`: the trusted TLS
    authorities; None = those of the system."""
    import http.client

    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trusted = context or ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT, context=trusted
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    where = f"{parts.scheme}://{parts.netloc}"
    try:
        sent = {**headers, "content-type": "application/json", "user-agent": "trainshed"}
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as failure:
        raise NotSent(f"cannot send the message to {where}: {str(failure) or repr(failure)}") from failure
    finally:
        connection.close()
    if 300 <= answer.status < 400:
        raise NotSent(
            f"{where} responded with status {answer.status}: redirects are not followed; set the final URL"
        )
    if not 200 <= answer.status < 300:
        raise NotSent(f"{where} responded with status {answer.status} {answer.reason}".rstrip())


def _mail(sender: str, to: Sequence[str], content: tuple[str, str], id_: str, at: int) -> "EmailMessage":
    """Return the mail. `content`: subject and text. `at`: the date in seconds since the epoch. `id_`: the
    notification's ID, the same for each attempt, so that a receiver can detect duplicates."""
    from email.headerregistry import Address
    from email.message import EmailMessage
    from email.utils import format_datetime

    subject, text = content
    mail = EmailMessage()
    mail["From"] = Address("Trainshed", addr_spec=sender)
    mail["To"] = ", ".join(to)
    mail["Subject"] = subject
    mail["Date"] = format_datetime(datetime.fromtimestamp(at, UTC))
    mail["Message-ID"] = f"<{id_}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    return mail


def _send_mail(smtp: Smtp, mail: "EmailMessage", context: ssl.SSLContext | None) -> str | None:
    """Send the mail to the server. Use TLS unless the settings disable it. `context`: the trusted TLS
    authorities; None = those of the system. Return None if the server accepted all addresses. Otherwise,
    return the rejected addresses, as the rest of a sentence. Raises NotSent if the server did not accept the
    mail."""
    import smtplib

    where = f"{smtp.host}:{smtp.port}"
    trusted = context or ssl.create_default_context()
    try:
        server: smtplib.SMTP
        if smtp.tls == "tls":
            server = smtplib.SMTP_SSL(smtp.host, smtp.port, timeout=_MAIL_TIMEOUT, context=trusted)
        else:
            server = smtplib.SMTP(smtp.host, smtp.port, timeout=_MAIL_TIMEOUT)
        with server:
            if smtp.tls == "starttls":
                server.starttls(context=trusted)
            if smtp.user:
                server.login(smtp.user, smtp.password)
            refused = server.send_message(mail)
    except (OSError, smtplib.SMTPException) as failure:
        raise NotSent(f"cannot send the message to {where}: {str(failure) or repr(failure)}") from failure
    # This does not count as a failure: another attempt would send the mail to the accepted addresses again.
    return f", but {where} does not accept mail for {', '.join(refused)}" if refused else None
