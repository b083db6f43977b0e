"""The targets of notifications: the tables `[[notify]]` and the setting `smtp`. Opens no connections."""

import base64
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta, Struct

from trainshed.core.notifications import OF_JOBS, Occasion, Target
from trainshed.httpd.hosts import is_loopback

SmtpTls = Literal["starttls", "tls", "none"]
_PREFIX: Final = "whsec_"
_MAIL_PORTS: Final = {"smtp": 587, "smtps": 465}
_EVERYTHING: Final = tuple(occasion.value for occasion in OF_JOBS)
_Name = Annotated[
    str,
    Meta(
        pattern=r"\A[a-z][a-z0-9-]{0,30}\Z",
        description="up to 31 lower-case letters, digits and -, such as ops",
    ),
]
_Address = Annotated[
    str,
    Meta(
        pattern=r"\A[^@\s<>,;:]{1,64}@[^@\s<>,;:]{1,255}\Z", description="an address such as team@example.org"
    ),
]
_Percentage = Annotated[int, Meta(ge=1, le=1000)]


class NotSent(Exception):
    """A notification was not delivered. The message contains the reason."""


def key_of(secret: str) -> bytes:
    """Return the key of a webhook's signature. If the secret starts with `whsec_`, the key is the rest,
    decoded from base64. Otherwise, it is the secret itself. Raises ValueError if the rest is not base64."""
    if secret.startswith(_PREFIX):
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return secret.encode()


class NotifyTable(Struct, frozen=True):
    """One table `[[notify]]`. It contains either a webhook or mail addresses. A retry sends the notification
    to the whole table again."""

    #: The name of the target, by which the labels of a job select it.
    name: _Name
    #: The URL to post to; None = no webhook.
    webhook: str | None = None
    #: The environment variable that contains the key of the webhook's signature; None = no signature.
    secret_env: str | None = None
    mail: tuple[_Address, ...] = ()
    on: tuple[str, ...] = _EVERYTHING
    #: The jobs to report. `named`: jobs with a label that contains the name of this target. `all`: all jobs.
    jobs: Literal["named", "all"] = "named"
    #: The percentages of a budget at which a notification is sent.
    budgets: tuple[_Percentage, ...] = ()

    @property
    def target(self) -> Target:
        """The target as a value of `core.notifications`."""
        on, budgets = frozenset(map(Occasion, self.on)), tuple(sorted(set(self.budgets)))
        return Target(self.name, on, self.jobs == "all", budgets)

    def faults(self) -> Iterator[str]:
        """Yield the errors in the table as `key: description`."""
        if self.webhook and not (_is_url(self.webhook) and urlsplit(self.webhook).username is None):
            yield f"webhook: {self.webhook!r} is not a URL such as https://hooks.example.org/train"
        try:
            key_of(os.environ.get(self.secret_env or "", ""))
        except ValueError:
            yield f"secret_env: the value of {self.secret_env} after {_PREFIX} is not base64"
        if bool(self.webhook) == bool(self.mail):
            yield "webhook: set either this or mail; for both, use two tables"
        if not self.on or not set(self.on) <= set(_EVERYTHING):
            yield f"on: {list(self.on)} is not a list of some of {', '.join(_EVERYTHING)}"


@dataclass(frozen=True, slots=True)
class Smtp:
    """The mail server for notifications, and how the service connects to it."""

    host: str
    port: int
    #: `tls`: the connection uses TLS from the first byte.
    tls: SmtpTls
    #: The account with which the service signs in; None = no sign-in.
    user: str | None
    password: str = field(repr=False)
    #: The sender's address in each mail.
    sender: str


def mail_server(url: str | None, password: str = "") -> Smtp | None:
    """Return the mail server of a URL; None without a URL. `smtp://USER@HOST:PORT/SENDER` uses STARTTLS,
    except on this machine. `smtps://...` uses TLS from the first byte. Raises ValueError for any other URL.
    """
    if url is None:
        return None
    sender = unquote(urlsplit(url).path[1:]) if _is_url(url, _MAIL_PORTS) else ""
    if "@" not in sender or urlsplit(url).password is not None:
        raise ValueError(
            f"{url!r} is not a URL of a mail server with the sender's address, such as "
            "smtp://user@mail.example.org:587/trainshed@example.org, or smtps://… for TLS from the first "
            "byte. Put the password into $TRAINSHED_SMTP_PASSWORD"
        )
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or _MAIL_PORTS[parts.scheme]
    starttls: SmtpTls = "none" if is_loopback(host) else "starttls"
    tls: SmtpTls = "tls" if parts.scheme == "smtps" else starttls
    return Smtp(host, port, tls, unquote(parts.username or "") or None, password, sender)


def _is_url(text: str, schemes: Container[str] = ("http", "https")) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and port != 0
