"""Finds out how seats without a link stand, and ends those whose shims do not answer. A task for each such seat."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from trainshed.engines.local import findings
from trainshed.engines.local.seat import Seat
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import Crew
from trainshed.replica import fence, journal

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before a slot whose files cannot be read or written now is looked into again."""


class Settler:
    """`request` has a shim started for a seat; `renew` replaces the process that starts them."""

    def __init__(
        self,
        request: Callable[[Seat], Awaitable[None]],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._request = request
        self._renew = renew
        self._tasks = Crew()
        self._expelling: set[tuple[Seat, int]] = set()

    def later(self, seat: Seat) -> None:
        """A seat has no link and no end: find out which."""
        work = partial(self._settle, seat, seat.incarnation)
        self._tasks.keep(work, f"job {seat.job_uid}: looking into {seat.slot.replica}")

    def expel(self, seat: Seat, lease: float, cleared: Callable[[Seat], None]) -> None:
        """Its shim has not answered for `lease` seconds: kill it and all that is left of the replica, then report the
        loss and call `cleared`. Until all of that is dead nothing is reported."""
        if (seat, seat.incarnation) not in self._expelling:
            self._expelling.add((seat, seat.incarnation))
            seat.let_go()
            work = partial(self._expel, seat, seat.incarnation, lease, cleared)
            self._tasks.keep(work, f"job {seat.job_uid}: clearing {seat.slot.replica}")

    async def close(self) -> None:
        await self._tasks.close()

    async def _settle(self, seat: Seat, incarnation: int) -> None:
        pause = 0.001
        while self._is_open(seat, incarnation):
            try:
                finding = await asyncio.to_thread(findings.look, seat.directory, incarnation)
            except OSError as error:
                # A full disk, say: the end cannot be written down yet, and so must not be told. That it is silent
                # is not its fault.
                seat.excuse()
                log.warning("%s cannot be looked into: %s; once more in a second", seat.slot, error)
                await asyncio.sleep(_PAUSE)
                continue
            match finding:
                case findings.Changing():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.1)
                case findings.NeverStarted() if (
                    self._is_open(seat, incarnation) and seat.plan and seat.retries_left > 0
                ):
                    # The request died with the zygote before a shim began: it may be made again.
                    seat.retries_left -= 1
                    try:
                        await self._request(seat)
                    except (EngineUnavailable, OSError) as error:
                        seat.lose(str(error), by_service=True)
                    return
                case _:
                    seat.settle(incarnation, finding)
                    return

    def _is_open(self, seat: Seat, incarnation: int) -> bool:
        """Whether an incarnation's end is not known, and nobody brings it about."""
        return seat.awaits(incarnation) and (seat, incarnation) not in self._expelling

    async def _expel(
        self, seat: Seat, incarnation: int, lease: float, cleared: Callable[[Seat], None]
    ) -> None:
        while seat.awaits(incarnation):
            try:
                began, finding = await asyncio.to_thread(_end, seat.directory, incarnation, lease)
            except OSError as error:
                log.warning("%s cannot be cleared: %s; once more in a second", seat.slot, error)
                began, finding = True, findings.Changing()
            if not began:
                await self._renew()
            if isinstance(finding, findings.Changing):
                await asyncio.sleep(_PAUSE)  # Something waits for a device, say, and cannot die.
            else:
                seat.settle(incarnation, finding)
        self._expelling.discard((seat, incarnation))
        cleared(seat)


def _end(slot: Path, incarnation: int, lease: float) -> tuple[bool, findings.Finding]:
    """Leave nothing of an incarnation, and see to it that nothing more can come of it. Blocks.

    Returns whether a shim ever began to serve it (else whoever starts them does not), and how it stands now.
    """
    began = journal.Entries(str(slot)).latest >= incarnation
    if began:
        cause = f"its shim did not answer for {lease:g} s; it was killed, and its program with it"
    else:
        cause = f"no shim came up for it within {lease:g} s"
    dead = fence.expel(str(slot), incarnation, cause)
    return began, findings.look(slot, incarnation) if dead else findings.Changing()
