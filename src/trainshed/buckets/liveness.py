"""Asks the service's API process whether the program that a token was given to is still there.

A program's token is signed and stored nowhere, and counts for an hour; that its job has ended since, the API process alone
knows. It is asked with the token itself, when a request brings one: nothing is kept here that could be out of date.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import msgspec

from trainshed.buckets.errors import Unauthenticated, Unavailable
from trainshed.buckets.sockets import reachable

_PATIENCE: Final = 10.0
"""Seconds to wait for the answer: at its start the service takes connections before it answers."""
_LONGEST: Final = 1 << 16
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class Liveness:
    """`service`: the Unix socket at which the API process hears programs."""

    def __init__(self, service: Path) -> None:
        self._service = service

    async def require(self, authorization: str, project: str) -> None:
        """Raises Unauthenticated, in the service's words, for a token whose program is over; Unavailable if the service
        does not answer."""
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await self._ask(authorization, project)
        except (OSError, TimeoutError) as failure:
            raise _silent() from failure
        head, _, body = answer.partition(b"\r\n\r\n")
        status = _STATUS.match(head)
        if status is None or status[1].startswith(b"5"):
            raise _silent()
        if status[1] == b"401":
            raise Unauthenticated(_message(body))

    async def _ask(self, authorization: str, project: str) -> bytes:
        # The cheapest question that needs a token of the project.
        question = (
            f"GET /v1/projects/{project} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: {authorization}\r\nConnection: close\r\n\r\n"
        )
        with reachable(self._service) as short:
            reader, writer = await asyncio.open_unix_connection(short)
        try:
            writer.write(question.encode("latin-1"))
            answer = b""
            while len(answer) < _LONGEST and (data := await reader.read(_LONGEST)):
                answer += data
            return answer
        finally:
            writer.close()


def _message(body: bytes) -> str:
    """What an error of the API says."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return "The access token is that of a program that is over: use a token of your own."


def _silent() -> Unavailable:
    return Unavailable(
        "The service does not say whether the program that this token was given to still runs: it is restarting. "
        "Try again in a moment."
    )
