"""Reads the tables `[[notify]]` and the setting `smtp`, which say where notifications go. Knows no socket."""

import base64
import ipaddress
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from trainshed.core.notifications import OF_JOBS, Occasion, Target

SmtpTls = Literal["starttls", "tls", "none"]
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")
_ADDRESS: Final = re.compile(r"[^@\s<>,;:]{1,64}@[^@\s<>,;:]{1,255}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_PREFIX: Final = "whsec_"
_KEYS: Final = ("name", "webhook", "secret_env", "mail", "on", "jobs", "budgets")
_MAIL_PORTS: Final = {"smtp": 587, "smtps": 465}
_EVERYTHING: Final = tuple(occasion.value for occasion in OF_JOBS)


class NotSent(Exception):
    """A notification was not delivered. The message says why."""


def key_of(secret: str) -> bytes:
    """Returns the key of a webhook's signature: the base64 text behind `whsec_`, decoded, or else the text
    itself. Raises ValueError."""
    if secret.startswith(_PREFIX):
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return secret.encode()


class NotifyTable(Struct, frozen=True):
    """One table `[[notify]]`: a webhook, mail addresses, or both."""

    #: The name by which the labels of jobs choose this target.
    name: str
    #: The URL to post to; "" = none.
    webhook: str = ""
    #: The environment variable that holds the key of the webhook's signature; "" = it is not signed.
    secret_env: str = ""
    mail: tuple[str, ...] = ()
    on: tuple[str, ...] = _EVERYTHING
    #: Which jobs it hears of: `named` = those whose label names it; `all`.
    jobs: str = "named"
    #: The percentages of budgets of which it hears.
    budgets: tuple[int, ...] = ()

    @property
    def target(self) -> Target:
        """The target, as `core.notifications` knows it."""
        on, budgets = frozenset(map(Occasion, self.on)), tuple(sorted(set(self.budgets)))
        return Target(self.name, on, self.jobs == "all", budgets)


@dataclass(frozen=True, slots=True)
class Smtp:
    """The server that takes mail."""

    host: str
    port: int
    #: `tls`: from the first byte.
    tls: SmtpTls
    #: The account to sign in with; "" = without signing in.
    user: str
    password: str = field(repr=False)
    #: The address in the mail's From.
    sender: str


def mail_server(url: str, password: str = "") -> Smtp | None:
    """Return the server of `smtp://USER@HOST:PORT/SENDER` (STARTTLS, except on this machine) or `smtps://...`
    (TLS from the first byte); None if the address is empty. Raises ValueError."""
    if not url:
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
    starttls: SmtpTls = "none" if _is_here(host) else "starttls"
    tls: SmtpTls = "tls" if parts.scheme == "smtps" else starttls
    return Smtp(host, port, tls, unquote(parts.username or ""), password, sender)


def _is_here(host: str) -> bool:
    """Whether a host is this machine, with which nobody listens."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def notify_tables(rows: Sequence[Mapping[str, Any]]) -> tuple[NotifyTable, ...]:
    """Returns the tables as read from TOML. Raises ValueError with a line for everything that is wrong."""
    wrong: list[str] = []
    tables: list[NotifyTable] = []
    for number, row in enumerate(rows):
        faults = list(_faults(row))
        wrong += [f"notify[{number}].{fault}" for fault in faults]
        if not faults:
            lists: dict[str, Any] = {
                key: tuple(row[key]) for key in ("mail", "on", "budgets") if key in row
            }
            tables.append(NotifyTable(**{**row, **lists}))
    names = [table.name for table in tables]
    wrong += [
        f"notify: {name!r} has two tables" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(tables)


def _faults(row: Mapping[str, Any]) -> Iterator[str]:
    for key in row:
        if key not in _KEYS:
            yield f"{key}: unknown; there are {', '.join(_KEYS)}"
    name, webhook = row.get("name", ""), row.get("webhook", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"name: {name!r} is no name of lower-case letters, digits and -, up to 31, such as ops"
    if webhook and not _is_url(webhook):
        yield f"webhook: {webhook!r} is no address such as https://hooks.example.org/train"
    secret = row.get("secret_env", "")
    if secret and not (isinstance(secret, str) and _VARIABLE.fullmatch(secret)):
        yield f"secret_env: {secret!r} is no name of an environment variable"
    elif secret and not os.environ.get(secret):
        yield f"secret_env: the environment variable {secret} is not set; set it for the service"
    elif secret:
        try:
            key_of(os.environ[secret])
        except ValueError:
            yield f"secret_env: what stands in {secret} behind {_PREFIX} is no base64"
    mail = _texts(row.get("mail", []))
    if mail is None or not all(map(_ADDRESS.fullmatch, mail)):
        yield f"mail: {row.get('mail')!r} is no list of addresses such as ['team@example.org']"
    if not webhook and not mail:
        yield "webhook: give one, or addresses as mail"
    yield from _choice_faults(row)


def _choice_faults(row: Mapping[str, Any]) -> Iterator[str]:
    on = _texts(row.get("on", []))
    if on is None or not set(on) <= set(_EVERYTHING) or ("on" in row and not on):
        yield f"on: {row.get('on')!r} is no list of some of {', '.join(_EVERYTHING)}"
    if row.get("jobs", "named") not in ("named", "all"):
        yield f"jobs: {row['jobs']!r} is not one of named, all"
    if not _are_percentages(row.get("budgets", [])):
        yield f"budgets: {row['budgets']!r} is no list of percentages such as [50, 90, 100]"


def _texts(value: Any) -> list[str] | None:
    """Returns the value if it is a list of texts, else None."""
    if not isinstance(value, list):
        return None
    items = cast("list[Any]", value)
    return items if all(isinstance(item, str) for item in items) else None


def _are_percentages(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(percent) is int and 1 <= percent <= 1000 for percent in cast("list[Any]", value)
    )


def _is_url(text: Any, schemes: Container[str] = ("http", "https")) -> bool:
    if not isinstance(text, str):
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and port != 0
