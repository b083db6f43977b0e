"""Reads the tables `[[notify]]` and the setting `smtp`, which say where notifications go. Knows no socket."""

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
        pattern=r"\A[^@\s<>,;:]{1,64}@[^@\s<>,;:]{1,255}\Z",
        description="an address such as team@example.org",
    ),
]
_Percentage = Annotated[int, Meta(ge=1, le=1000)]


class NotSent(Exception):
    """A notification was not delivered. The message says why."""


def key_of(secret: str) -> bytes:
    """Returns the key of a webhook's signature: the base64 text behind `whsec_`, decoded, or else the text
    itself. Raises ValueError."""
    if secret.startswith(_PREFIX):
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return secret.encode()


class NotifyTable(Struct, frozen=True):
    """One table `[[notify]]`: a webhook or mail addresses, which are tried again together."""

    #: The name by which the labels of jobs choose this target.
    name: _Name
    #: The URL to post to; None = there is none.
    webhook: str | None = None
    #: The environment variable that holds the key of the webhook's signature; None = it is not signed.
    secret_env: str | None = None
    mail: tuple[_Address, ...] = ()
    on: tuple[str, ...] = _EVERYTHING
    #: Which jobs it hears of: `named` = those whose label names it; `all`.
    jobs: Literal["named", "all"] = "named"
    #: The percentages of budgets of which it hears.
    budgets: tuple[_Percentage, ...] = ()

    @property
    def target(self) -> Target:
        """The target, as `core.notifications` knows it."""
        on, budgets = frozenset(map(Occasion, self.on)), tuple(sorted(set(self.budgets)))
        return Target(self.name, on, self.jobs == "all", budgets)

    def faults(self) -> Iterator[str]:
        """Yields what is wrong with the table, as `key: words`."""
        if self.webhook and not (_is_url(self.webhook) and urlsplit(self.webhook).username is None):
            yield f"webhook: {self.webhook!r} is no address such as https://hooks.example.org/train"
        try:
            key_of(os.environ.get(self.secret_env or "", ""))
        except ValueError:
            yield f"secret_env: what stands in {self.secret_env} behind {_PREFIX} is no base64"
        if bool(self.webhook) == bool(self.mail):
            yield "webhook: give either one or addresses as mail; for both, a table each"
        if not self.on or not set(self.on) <= set(_EVERYTHING):
            yield f"on: {list(self.on)} is no list of some of {', '.join(_EVERYTHING)}"


@dataclass(frozen=True, slots=True)
class Smtp:
    """The server that takes mail."""

    host: str
    port: int
    #: `tls`: from the first byte.
    tls: SmtpTls
    #: The account to sign in with; None = without signing in.
    user: str | None
    password: str = field(repr=False)
    #: The address in the mail's From.
    sender: str


def mail_server(url: str | None, password: str = "") -> Smtp | None:
    """Return the server of `smtp://USER@HOST:PORT/SENDER` (STARTTLS, except on this machine) or `smtps://...`
    (TLS from the first byte); None if there is no address. Raises ValueError."""
    if url is None:
        return None
    sender = unquote(urlsplit(url).path[1:]) if _is_url(url, _MAIL_PORTS) else ""
    if "@" not in sender or urlsplit(url).password is not None:
        raise ValueError(
            f"{url!r} is no address of a mail server with that of the sender, such as "
            "smtp://user@mail.example.org:587/trainshed@example.org, or smtps://… for TLS from the first "
            "byte; the password is $TRAINSHED_SMTP_PASSWORD"
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
