"""Finds out how slots without a link to their shim stand, and ends those whose shims do not answer within
their leases. It runs one task per such slot."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from trainshed.engines.local.slot_handle import Finding, SlotHandle, Unclear, probe_slot
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import Crew
from trainshed.replica.supervisor import journal
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_QUESTIONS = 3
"""How often a shim is asked within a lease."""
_PAUSE = 1.0
"""Seconds before a slot whose files cannot be read or written now is looked into again."""


class Reconciler:
    """Brings slot handles in line with the actual state of their shims. One timer asks all of these whether
    they live.

    It counts unanswered questions, not elapsed time, so that no lease ends because the service itself was
    stopped for a while, or the machine slept.
    """

    def __init__(
        self,
        slot_handles: Callable[[], Iterable[SlotHandle]],
        request: Callable[[SlotHandle], Awaitable[None]],
        unborn: Callable[[], None],
        lease: float,
    ) -> None:
        self._slot_handles = slot_handles
        #: Requests a shim for a slot from the zygote.
        self._request = request
        #: Called if a shim that was asked for has not come up since the last question.
        self._unborn = unborn
        #: Seconds that a shim may be silent.
        self._lease = lease
        self._tasks = Crew()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start the timer, which runs as long as there are live slots."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._lease / _QUESTIONS, self._ask)

    def _ask(self) -> None:
        self._timer = None
        live = [slot_handle for slot_handle in self._slot_handles() if slot_handle.is_live]
        if not live:
            return
        self.watch()
        is_unborn = False
        for slot_handle in live:
            unanswered = slot_handle.ask()
            is_unborn |= unanswered == 1 and slot_handle.may_begin
            if unanswered >= _QUESTIONS:
                self.evict(slot_handle)
        if is_unborn:
            self._unborn()

    def reconcile(self, slot_handle: SlotHandle) -> None:
        """Find out how a slot that has neither a link nor an end stands."""
        work = partial(self._reconcile, slot_handle, slot_handle.incarnation)
        what = f"job {slot_handle.job_uid}: looking into {slot_handle.slot.replica}"
        self._tasks.keep(work, what)

    def evict(self, slot_handle: SlotHandle) -> None:
        """Kill a shim whose lease is over and all processes of its replica, then report the loss. Nothing is
        reported before all of them are dead."""
        if not slot_handle.is_evicted:
            slot_handle.is_evicted = True
            slot_handle.close()
            self.reconcile(slot_handle)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def _reconcile(self, slot_handle: SlotHandle, incarnation: int) -> None:
        pause = 0.001
        while slot_handle.expects(incarnation):
            try:
                finding = await asyncio.to_thread(self._look, slot_handle, incarnation)
            except OSError as error:
                # On a full disk, for example, the end cannot be written down yet, and so must not be
                # reported. The shim's silence is then not its fault.
                slot_handle.count_as_alive()
                job_uid, attempt, replica = slot_handle.key
                subject = about(log, job_uid, attempt=attempt, replica=replica)
                subject.warning("slot not read: %s; once more in a second", error)
                await asyncio.sleep(_PAUSE)
                continue
            match finding:
                case Unclear.CHANGING:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.1)
                case Unclear.NEVER_STARTED if (
                    slot_handle.expects(incarnation)
                    and slot_handle.plan
                    and slot_handle.retries_left > 0
                ):
                    # The request died with the zygote before a shim began, so that it may be repeated.
                    slot_handle.retries_left -= 1
                    try:
                        await self._request(slot_handle)
                    except (EngineUnavailable, OSError) as error:
                        if slot_handle.expects(incarnation):
                            slot_handle.lose(str(error), by_service=True)
                    return
                case _:
                    slot_handle.settle(incarnation, finding)
                    return

    def _look(self, slot_handle: SlotHandle, incarnation: int) -> Finding:
        """Return how an incarnation stands; one that is evicted is killed first, and can never start any
        more. Blocks."""
        slot = slot_handle.directory
        if slot_handle.is_evicted:
            cause = f"no shim came up for it within {self._lease:g} s"
            if journal.Entries(str(slot)).latest >= incarnation:
                silent = f"its shim did not answer for {self._lease:g} s"
                cause = f"{silent}; it was killed, and its program with it"
            if not journal.expel(str(slot), incarnation, cause):
                # A process that waits for a device cannot die yet, for example.
                return Unclear.CHANGING
        return probe_slot(slot, incarnation)
