"""Finds out how seats without a link stand, and ends those whose shims do not answer. A task for each such
seat."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from trainshed.engines.local import findings
from trainshed.engines.local.seat import Seat
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import Crew
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before a slot whose files cannot be read or written now is looked into again."""
_MOST_SHORTAGES = 60
"""How often in a row a start finds no room though the disk has some: a quota, or what is no matter of the
disk at all."""


class Settler:
    """`request` has a shim started for a seat; `renew` replaces the process of that id, which starts them;
    `forbidden` tells whether an incarnation was stopped before it began; `require_room` raises OSError while
    the disk is full."""

    def __init__(
        self,
        request: Callable[[Seat], Awaitable[None]],
        renew: Callable[[int], Awaitable[None]],
        forbidden: Callable[[Seat, int], bool],
        require_room: Callable[[], None],
    ) -> None:
        self._request = request
        self._renew = renew
        self._forbidden = forbidden
        self._require_room = require_room
        self._tasks = Crew()
        self._expelling: set[tuple[Seat, int]] = set()

    def later(self, seat: Seat) -> None:
        """A seat has no link and no end: find out which."""
        work = partial(self._settle, seat, seat.incarnation)
        self._tasks.keep(work, f"job {seat.job_uid}: looking into {seat.slot.replica}")

    def expel(self, seat: Seat, lease: float, cleared: Callable[[Seat], None]) -> None:
        """Its shim has not answered for `lease` seconds: kill it and all that is left of the replica, then
        report the loss and call `cleared`. Until all of that is dead nothing is reported."""
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
                # A full disk, say: the end cannot be written down yet, and so must not be told. That it is
                # silent is not its fault.
                seat.excuse()
                log.warning("%s cannot be looked into: %s; once more in a second", seat.slot, error)
                await asyncio.sleep(_PAUSE)
                continue
            match finding:
                case findings.Changing():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.1)
                case findings.NeverStarted() if seat.wants_room and seat.plan:
                    await self._await_room(seat, incarnation)
                    return
                case findings.NeverStarted() if (
                    self._is_open(seat, incarnation) and seat.plan and seat.retries_left > 0
                ):
                    # The request died with the zygote before a shim began: it may be made again.
                    seat.retries_left -= 1
                    await self._ask(seat, incarnation)
                    return
                case findings.NeverStarted():
                    await self._lose(seat, incarnation, protocol.NEVER_STARTED)
                    return
                case _:
                    seat.settle(incarnation, finding)
                    return

    async def _ask(self, seat: Seat, incarnation: int) -> None:
        try:
            await self._request(seat)
        except (EngineUnavailable, OSError) as error:
            await self._lose(seat, incarnation, str(error), by_service=True)

    async def _lose(
        self, seat: Seat, incarnation: int, cause: str, *, by_service: bool = False
    ) -> None:
        """Report an incarnation that never began as lost. Where somebody may still wake up with its start,
        that it can never begin is written down first."""
        while seat.was_given_on and self._is_open(seat, incarnation):
            finding: findings.Finding = findings.Changing()
            try:
                finding = await asyncio.to_thread(_close, seat.directory, incarnation, cause)
            except OSError as error:
                log.warning("%s cannot be given up: %s; once more in a second", seat.slot, error)
            if not isinstance(finding, findings.Changing):
                seat.settle(incarnation, finding)
                return
            seat.excuse()
            await asyncio.sleep(_PAUSE)
        if self._is_open(seat, incarnation):
            seat.lose(cause, by_service=by_service)

    async def _await_room(self, seat: Seat, incarnation: int) -> None:
        """Its start found the disk full, so that nothing of it ran: have it tried again once there is room,
        or never if it is stopped meanwhile."""
        if not seat.shortages:
            told = "job %d: %s is not started: the disk is full; it is tried again"
            log.warning(told, seat.job_uid, seat.slot.replica)
        seat.shortages += 1
        while True:
            await asyncio.sleep(_PAUSE)
            if not self._is_open(seat, incarnation):
                return
            if self._forbidden(seat, incarnation):
                seat.lose(protocol.NEVER_STARTED)
                return
            try:
                self._require_room()
            except OSError:
                seat.shortages = 1
            else:
                break
        if seat.shortages > _MOST_SHORTAGES:
            cause = "its shim finds no room for its records; look at the quotas"
            await self._lose(seat, incarnation, cause, by_service=True)
        else:
            await self._ask(seat, incarnation)

    def _is_open(self, seat: Seat, incarnation: int) -> bool:
        """Whether an incarnation's end is not known, and nobody brings it about."""
        return seat.awaits(incarnation) and (seat, incarnation) not in self._expelling

    async def _expel(
        self, seat: Seat, incarnation: int, lease: float, cleared: Callable[[Seat], None]
    ) -> None:
        if await self._is_given_on(seat, incarnation):
            cleared(seat)
            return
        while seat.awaits(incarnation):
            try:
                began, finding = await asyncio.to_thread(_end, seat.directory, incarnation, lease)
            except OSError as error:
                log.warning("%s cannot be cleared: %s; once more in a second", seat.slot, error)
                began, finding = True, findings.Changing()
            if not began:
                await self._renew(seat.zygote)
            if isinstance(finding, findings.Changing):
                await asyncio.sleep(_PAUSE)  # Something waits for a device, say, and cannot die.
            else:
                seat.settle(incarnation, finding)
        self._expelling.discard((seat, incarnation))
        cleared(seat)

    async def _is_given_on(self, seat: Seat, incarnation: int) -> bool:
        """Have a start that nobody took up within its lease made by another process, at no cost for the
        replica. Whoever wakes up with it after that finds the slot taken (`journal.claim`), or takes it
        first: it begins once."""
        if not seat.plan or not seat.retries_left:
            return False
        try:
            if await asyncio.to_thread(_has_begun, seat.directory, incarnation):
                return False
            await self._renew(seat.zygote)
        except (EngineUnavailable, OSError):
            return False
        self._expelling.discard((seat, incarnation))
        if seat.awaits(incarnation):
            told = "job %d: nobody took up the start of %s within its lease; it is asked for again"
            log.warning(told, seat.job_uid, seat.slot.replica)
            seat.retries_left -= 1
            seat.was_given_on = True
            seat.excuse()
            await self._ask(seat, incarnation)
        return True


def _has_begun(slot: Path, incarnation: int) -> bool:
    """Whether a shim ever began to serve an incarnation."""
    return journal.Entries(str(slot)).latest >= incarnation


def _end(slot: Path, incarnation: int, lease: float) -> tuple[bool, findings.Finding]:
    """Leave nothing of an incarnation, and see to it that nothing more can come of it. Blocks.

    Returns whether a shim ever began to serve it (else whoever starts them does not), and how it stands now.
    """
    began = _has_begun(slot, incarnation)
    if began:
        cause = f"its shim did not answer for {lease:g} s; it was killed, and its program with it"
    else:
        cause = f"no shim came up for it within {lease:g} s"
    return began, _close(slot, incarnation, cause)


def _close(slot: Path, incarnation: int, cause: str) -> findings.Finding:
    """Leave nothing of an incarnation, and see to it that nothing more can come of it; how it stands now.
    Raises OSError."""
    dead = journal.expel(str(slot), incarnation, cause)
    return findings.look(slot, incarnation) if dead else findings.Changing()
