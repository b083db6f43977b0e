"""Hands a mail to an SMTP server, over TLS unless the operator says otherwise.

The functions block, so they are called in a thread.
"""

import smtplib
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from trainshed.notifying.targets import NotSent, Smtp

_TIMEOUT: Final = 20.0


def message(
    sender: str, to: Sequence[str], content: tuple[str, str], id_: str, at: int
) -> EmailMessage:
    """Make the mail. `content` is its subject and text, `at` its date in seconds since the epoch. `id_`
    is the same at each try, so that a receiver can recognise a mail that came twice."""
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


def send(smtp: Smtp, mail: EmailMessage, context: ssl.SSLContext | None) -> str:
    """Hand the mail to the server. Return whom it does not take mail for, as a sentence goes on; "" = it took
    all. Raises NotSent. `context`: the authorities that TLS trusts; None = the system's."""
    where = f"{smtp.host}:{smtp.port}"
    trusted = context or ssl.create_default_context()
    try:
        server: smtplib.SMTP
        if smtp.tls == "tls":
            server = smtplib.SMTP_SSL(smtp.host, smtp.port, timeout=_TIMEOUT, context=trusted)
        else:
            server = smtplib.SMTP(smtp.host, smtp.port, timeout=_TIMEOUT)
        with server:
            if smtp.tls == "starttls":
                server.starttls(context=trusted)
            if smtp.user:
                server.login(smtp.user, smtp.password)
            refused = server.send_message(mail)
    except (OSError, smtplib.SMTPException) as failure:
        raise NotSent(f"{where} did not take it: {str(failure) or repr(failure)}") from failure
    # No failure: the other addresses have it, and another try would send it to them again.
    return f", but {where} does not take mail for {', '.join(refused)}" if refused else ""
