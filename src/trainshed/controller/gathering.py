"""Gathers the news of trials' measurements, so that a tuning job looks at them a few times a second at most."""

import asyncio
from collections.abc import Callable

from trainshed.core.names import JobUid

_SPAN = 0.2
"""Seconds in which what trials measure is gathered."""


class Gathering:
    """`wake`: looks at a tuning job. Holds nothing that matters: the measurements are in their files."""

    def __init__(self, wake: Callable[[JobUid], None]) -> None:
        self._wake = wake
        self._due: dict[JobUid, asyncio.TimerHandle] = {}

    def measured(self, uid: JobUid) -> None:
        """A trial of the tuning job has measured something."""
        if uid not in self._due:
            self._due[uid] = asyncio.get_running_loop().call_later(_SPAN, self._tell, uid)

    def close(self) -> None:
        """Tell nothing more."""
        for handle in self._due.values():
            handle.cancel()

    def _tell(self, uid: JobUid) -> None:
        del self._due[uid]
        self._wake(uid)
