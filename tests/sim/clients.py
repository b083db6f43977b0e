"""The clients of a simulated service: make the requests of a scenario in their order, and remember what was accepted."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from tests.sim.invariants import Books
from tests.sim.scenario import (
    HOUR,
    SECOND,
    Cancel,
    CancelTrial,
    DrainNode,
    OrderDrill,
    Relabel,
    Request,
    SetQuota,
    Submit,
    SubmitParent,
)
from trainshed.controller.controller import Controller
from trainshed.core.errors import AlreadyExists, FailedPrecondition
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.names import JobName, JobUid
from trainshed.core.works import Work
from trainshed.store.port import NewWork, NodeDrain, Store


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was answered with success. `submits`: jobs. `cancels`: jobs, with the ns at which the first was asked for."""

    submits: set[JobUid]
    cancels: dict[JobUid, int]


class Clients:
    """They outlive every service: a request that was not answered is made again of the next one. `creating`: the works
    whose submission is under way. `blocks`: called with the ns for which room may be hard to come by from now on."""

    def __init__(
        self,
        store: Store,
        books: Books,
        requests: Sequence[Request],
        now: Callable[[], int],
        blocks: Callable[[int], None],
    ) -> None:
        self.accepted = Accepted(set(), {})
        self.creating: tuple[Work, ...] = ()
        self._intake = store.intake
        self._books = books
        self._now = now
        self._blocks = blocks
        self._pending = list(requests)
        self._names: dict[JobUid, JobName] = {
            work.uid: work.name for request in requests for work in _works(request)
        }

    @property
    def are_done(self) -> bool:
        return not self._pending

    async def ask_all(self, service: Controller) -> None:
        while self._pending and not self._books.wrong:
            request = self._pending[0]
            await asyncio.sleep(max(0, request.at - self._now()) / SECOND)
            await self._ask(request, service)
            self._pending.pop(0)

    async def _ask(self, request: Request, service: Controller) -> None:
        now, intake = self._now(), self._intake
        match request:
            case Submit() | SubmitParent():
                await self._submit(_works(request), service)
            case Cancel(_, uid):
                await self._cancel(uid, self._names[uid], service)
            case CancelTrial(_, uid, number):
                if (trial := self._books.families.trial_job(uid, number)) is not None:
                    await self._cancel(trial.uid, trial.name, service)
            case Relabel(_, uid):
                await intake.replace_labels(self._names[uid], (("at", str(now)),), "", now)
            case OrderDrill(_, uid, drill):
                try:
                    await intake.order_drill(self._names[uid], replace(drill, ordered=now))
                except FailedPrecondition:
                    return
                service.wake(uid)
            case DrainNode(_, node, drained):
                await self._drain(node, drained=drained)
                await service.answers.capacity_changed()
            case SetQuota():
                await self._set_quota(request)
                await service.answers.capacity_changed()
            case _:
                assert_never(request)

    async def _submit(self, works: tuple[Work, ...], service: Controller) -> None:
        now = self._now()
        self.creating = tuple(replace(work, created=now, updated=now) for work in works)
        try:
            await self._intake.create_jobs([NewWork(work) for work in self.creating])
        except AlreadyExists:
            pass  # the answer to the first try was lost
        finally:
            self.creating = ()
        for work in works:
            self.accepted.submits.add(work.uid)
            service.wake(work.uid)

    async def _cancel(self, uid: JobUid, name: JobName, service: Controller) -> None:
        now = self._now()
        request = CancelRequested(CancelCause.USER, now)
        try:
            await self._intake.request_cancel(name, request)
        except FailedPrecondition:
            if not self._books.is_over(uid):
                self._books.wrong.append(f"a cancel of job {uid} was refused while it is not over")
            return
        self.accepted.cancels.setdefault(uid, now)
        service.wake(uid)

    async def _drain(self, node: str, *, drained: bool) -> None:
        self._blocks(HOUR)
        if drained:
            self._books.drained.add(node)
            await self._intake.drain_node(NodeDrain(node, self._now(), "new disks"))
        else:
            self._books.drained.discard(node)
            await self._intake.undrain_node(node)

    async def _set_quota(self, request: SetQuota) -> None:
        key, limit = request.key, request.limit
        if limit is None:
            self._books.quotas.pop(key, None)
            await self._intake.clear_quota(key)
            self._blocks(HOUR)
        else:
            await self._intake.set_quota(key, limit)
            self._books.quotas[key] = limit
            self._books.quotas_since = self._now()


def _works(request: Request) -> tuple[Work, ...]:
    """What a request makes."""
    match request:
        case Submit(_, job):
            return (job,)
        case SubmitParent(_, works):
            return works
        case _:
            return ()
