"""Notices from replicas that the platform will soon stop their programs.

A notice is valid while the connection of the replica's shim is open (`replica.protocol.preamble`).
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from trainshed.access.job_tokens import JobClaims


class Notices:
    """The notices of all replicas. For use on one event loop."""

    def __init__(self) -> None:
        self._open: dict[JobClaims, list[str]] = {}
        self._watching: dict[JobClaims, set[asyncio.Event]] = {}
        #: Whether the process is stopping. All waiting requests then end.
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        for program in list(self._watching):
            self._wake(program)

    def of(self, program: JobClaims) -> list[str]:
        """Return the notices of a replica, such as "preempted" or "maintenance"."""
        return self._open.get(program, [])

    def add(self, program: JobClaims, notice: str) -> None:
        self._open.setdefault(program, []).append(notice)
        self._wake(program)

    def remove(self, program: JobClaims, notice: str) -> None:
        notices = self._open[program]
        notices.remove(notice)
        if not notices:
            del self._open[program]
        self._wake(program)

    @contextmanager
    def watch(self, program: JobClaims) -> Generator[asyncio.Event]:
        """Yield an event that is set whenever the replica's notices change."""
        event = asyncio.Event()
        events = self._watching.setdefault(program, set())
        events.add(event)
        try:
            yield event
        finally:
            events.remove(event)
            if not events:
                self._watching.pop(program, None)

    def _wake(self, program: JobClaims) -> None:
        for event in self._watching.get(program, ()):
            event.set()
