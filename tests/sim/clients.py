"""Clients of a simulated service. They send the requests of a scenario in order, and record the accepted
ones.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

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
from trainshed.core.errors import Aborted, AlreadyExists, FailedPrecondition
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import JobName, JobUid
from trainshed.core.works import Work
from trainshed.store.port import NewWork, NodeDrain
from trainshed.store.sqlite.database import Store
from trainshed.store.sqlite.jobs import Intake

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Successful requests: submitted jobs, cancelled jobs with the time of the first request (ns), ordered
    drills by job, and the last labels of each job.
    """

    submits: set[JobUid]
    cancels: dict[JobUid, int]
    drills: Counter[JobUid] = field(default_factory=Counter[JobUid])
    labels: dict[JobUid, Labels] = field(default_factory=dict[JobUid, Labels])


class Clients:
    """Clients that survive every service and repeat unanswered requests at the next one.

    `creating` contains the works whose submission is active.
    """

    def __init__(self, books: Books, requests: Sequence[Request]) -> None:
        self.accepted = Accepted(set(), {})
        self.creating: tuple[Work, ...] = ()
        self._books = books
        self._clock = books.world.clock
        self._pending = list(requests)
        self._names: dict[JobUid, JobName] = {
            work.uid: work.name for request in requests for work in _works(request)
        }

    @property
    def are_done(self) -> bool:
        return not self._pending

    async def ask_all(self, service: Controller, store: Store) -> None:
        while self._pending and not self._books.wrong:
            request = self._pending[0]
            await asyncio.sleep(max(0, request.at - self._clock.now) / SECOND)
            await self._ask(request, service, store)
            self._pending.pop(0)

    async def _ask(self, request: Request, service: Controller, store: Store) -> None:
        now, intake = self._clock.wall, store.intake
        match request:
            case Submit() | SubmitParent():
                await self._submit(_works(request), service)
            case Cancel(_, uid):
                await self._cancel(intake, uid, self._names[uid], service)
            case CancelTrial(_, uid, number):
                if (trial := self._books.families.trial_job(uid, number)) is not None:
                    await self._cancel(intake, trial.uid, trial.name, service)
            case Relabel(_, uid):
                await self._relabel(store, uid)
            case OrderDrill(_, uid, drill):
                try:
                    await intake.order_drill(self._names[uid], replace(drill, ordered=now))
                except FailedPrecondition:
                    return
                self.accepted.drills[uid] += 1
                service.wake(uid)
            case DrainNode(_, node, drained):
                await self._drain(intake, node, drained=drained)
                await service.capacity_changed()
            case SetQuota():
                await self._set_quota(intake, request)
                await service.capacity_changed()
            case _:
                assert_never(request)

    async def ambush(self, service: Controller, store: Store, uid: JobUid, *, cancels: bool) -> None:
        """Request a change of a job at the moment of an event."""
        job = self._books.jobs[uid]
        if cancels:
            await self._cancel(store.intake, uid, job.name, service)
            return
        await self._order_in_vain(store, job)
        # While the service admits the first work, the second one is being stored.
        second = asyncio.create_task(self._order_in_vain(store, job))
        await asyncio.sleep(0)
        service.wake(uid)
        await second
        service.wake(uid)

    async def _order_in_vain(self, store: Store, job: Job) -> None:
        """Order a drill that waits for a line that is never printed."""
        primary, now = job.spec.replicas()[0], self._clock.wall
        with contextlib.suppress(FailedPrecondition):
            drill = Drill(0, DrillKind.KILL, primary, now, at_line="never")
            await store.intake.order_drill(job.name, drill)
            self.accepted.drills[job.uid] += 1

    async def _submit(self, works: tuple[Work, ...], service: Controller) -> None:
        now = self._clock.wall
        self.creating = tuple(replace(work, created=now, updated=now) for work in works)
        try:
            await service.create(*(NewWork(work) for work in self.creating))
        except AlreadyExists:
            for work in works:  # the response to the first attempt was lost
                service.wake(work.uid)
        finally:
            self.creating = ()
        self.accepted.submits.update(work.uid for work in works)

    async def _relabel(self, store: Store, uid: JobUid) -> None:
        """Let two clients update the same version of a job. The store rejects the second."""
        name, now = self._names[uid], self._clock.wall
        _, etag = await store.reader.job(name)
        labels = (("at", str(now)),)
        await store.intake.replace_labels(name, labels, "", now)
        self.accepted.labels[uid] = labels
        with contextlib.suppress(Aborted):
            await store.intake.replace_labels(name, (("by", "somebody"),), etag, now)
            self._books.wrong.append(f"the labels of job {uid} were changed by a stale etag")

    async def _cancel(self, intake: Intake, uid: JobUid, name: JobName, service: Controller) -> None:
        now = self._clock.wall
        request = CancelRequested(CancelCause.USER, now)
        try:
            await intake.request_cancel(name, request)
        except FailedPrecondition:
            if not self._books.is_over(uid):
                self._books.wrong.append(f"a cancel of job {uid} was refused while it is not over")
            return
        self.accepted.cancels.setdefault(uid, now)
        service.wake(uid)

    async def _drain(self, intake: Intake, node: str, *, drained: bool) -> None:
        self._books.blocks(HOUR)
        if drained:
            await intake.drain_node(NodeDrain(node, self._clock.wall, "new disks"))
            self._books.drain_times.setdefault(node, self._clock.now)
        else:
            self._books.drain_times.pop(node, None)
            await intake.undrain_node(node)

    async def _set_quota(self, intake: Intake, request: SetQuota) -> None:
        key, limit = request.key, request.limit
        if limit is None:
            self._books.quotas.pop(key, None)
            await intake.set_quota(key, None)
            self._books.blocks(HOUR)
        else:
            await intake.set_quota(key, limit)
            self._books.quotas[key] = limit
            self._books.quotas_since = self._clock.now


def _works(request: Request) -> tuple[Work, ...]:
    """Return the work that a request creates."""
    match request:
        case Submit(_, job):
            return (job,)
        case SubmitParent(_, works):
            return works
        case _:
            return ()
