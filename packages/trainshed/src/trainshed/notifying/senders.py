"""Sends notifications to the targets of the settings, each try in a thread of its own."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence

from trainshed.core.notifications import Target, mail_of
from trainshed.notifying.targets import NotifyTable, NotSent, Smtp


class Senders:
    """The senders of one service. `now` gives ns since the epoch. `context`: the authorities that TLS trusts;
    None = the system's."""

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

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets, as `core.notifications` knows them."""
        return tuple(table.target for table in self._tables.values())

    async def send(self, target: str, id_: str, content: str) -> None:
        """Try to send once. Raises NotSent. `id_` is the same at each try."""
        table = self._tables.get(target)
        if table is None:
            raise NotSent(f"there is no target {target!r} in the service's settings any more")
        await asyncio.to_thread(self._send, table, id_, content)

    def _send(self, table: NotifyTable, id_: str, content: str) -> None:
        at = self._now() // 10**9
        if table.webhook:
            # Loaded only where a target needs it, as the module for mail below.
            from trainshed.notifying import webhook

            body = content.encode()
            secret = self._environ.get(table.secret_env, "") if table.secret_env else ""
            headers = webhook.signed(id_, at, body, secret)
            webhook.post(table.webhook, body, headers, self._context)
        if table.mail:
            if self._smtp is None:
                raise NotSent("no server for mail is set (the setting smtp)")
            from trainshed.notifying import mail

            text = mail_of(json.loads(content))
            letter = mail.message(self._smtp.sender, table.mail, text, id_, at)
            mail.send(self._smtp, letter, self._context)
