"""Creates, changes and deletes persistent resources, stores the scheduler's decisions about their holds, and
finishes their operations (spec/queue#reservations).

A decision takes effect immediately, and a resource offers its machines to jobs once the decision is stored.
Changes are stored one after the other. After a restart, everything follows from the stored resources.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from trainshed.controller.capacity import CapacityTracker
from trainshed.core.capacity import Waiting
from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.job import JobError
from trainshed.core.lifecycle.events import Event
from trainshed.core.names import JobUid
from trainshed.core.reservations import (
    STOCK_OUT,
    Change,
    PersistentResource,
    PersistentResourceName,
    Used,
    place,
    public_resource,
    refuse,
    settle,
)
from trainshed.core.units import Nanos
from trainshed.core.usage import Use, reserved_use
from trainshed.eventloop.background import Crew, joined, wait_shielded
from trainshed.scheduler.model import Admit, Decision, Place, StockOut
from trainshed.store.notices import Notices
from trainshed.store.records import Operation
from trainshed.store.sqlite.reservations import Ending, PersistentResources

log = logging.getLogger(__name__)

_NO_HOLD: Final = JobUid(0)


class Reservations:
    """The persistent resources of a service. One per controller, on its event loop."""

    def __init__(
        self,
        table: PersistentResources,
        capacity: CapacityTracker,
        notices: Notices,
        *,
        now: Callable[[], Nanos],
        decide: Callable[[], None],
        report: Callable[[JobUid, Event], None],
        cancel: Callable[[JobUid, str], Awaitable[None]],
    ) -> None:
        """`decide`: runs the scheduler. `report`: receives an event of a job. `cancel`: cancels a job in the
        name of a user."""
        self._table = table
        self._capacity = capacity
        self._pools = capacity.reserved
        self._notices = notices
        self._now = now
        self._decide = decide
        self._report = report
        self._cancel = cancel
        self._lock = asyncio.Lock()
        self._crew = Crew()
        #: Jobs that are being cancelled because their resource is deleted.
        self._cancelled: set[JobUid] = set()

    async def load(self) -> None:
        """Load the stored resources. Their jobs are added to the tracker afterwards."""
        for resource in await self._table.all():
            self._capacity.set_resource(resource.name, resource)
            self._pools.unchecked.add(resource.name)

    async def close(self) -> None:
        """Stop. Changes in progress are finished."""
        await self._crew.close()
        await self.wait_for_changes()

    # --- questions ---

    async def wait_for_changes(self) -> None:
        """Wait until no change is being stored, so that a reader of a finished operation sees its effect."""
        async with self._lock:
            pass

    def get(self, name: PersistentResourceName) -> PersistentResource:
        """Return a resource. Raise NotFound."""
        if (resource := self._pools.resources.get(name)) is None:
            raise NotFound(f"{name} does not exist; check its name and its location")
        return resource

    def find(self, name: PersistentResourceName) -> PersistentResource | None:
        return self._pools.resources.get(name)

    def of_location(self, project_id: str, location: str) -> tuple[PersistentResource, ...]:
        """Return the resources of a location, by name."""
        place = (project_id, location)
        of_place = (
            resource
            for name, resource in self._pools.resources.items()
            if (name.project_id, name.location) == place
        )
        return tuple(sorted(of_place, key=lambda resource: resource.name))

    def usage(self, name: PersistentResourceName) -> Used:
        return self._pools.usage(name)

    def explain_wait(self, resource: PersistentResource) -> Waiting | None:
        """Return the reason why machines of a resource are not reserved yet, or None if all are reserved."""
        for hold in resource.holds:
            if waiting := self._capacity.explain_wait(hold.uid, self._now()):
                return waiting
        return None

    def uses(self, until: Nanos) -> Iterator[Use]:
        """Yield the usage of all resources until a given time."""
        for resource in self._pools.resources.values():
            yield from reserved_use(resource, until, self._capacity.nodes)

    # --- changes by requests ---

    async def create(self, resource: PersistentResource, operation: Operation) -> None:
        """Store a new resource with its running operation, and request its machines. Raise AlreadyExists."""

        async def work() -> None:
            async with self._lock:
                if self.find(resource.name) is not None:
                    raise AlreadyExists(f"{resource.name} already exists; choose another id")
                await self._table.create(resource, operation)
                self._capacity.set_resource(resource.name, resource)
            self._decide()

        await wait_shielded(joined(work()))

    async def change(
        self,
        name: PersistentResourceName,
        change: Change,
        begun: Operation | None = None,
        *,
        decided: JobUid = _NO_HOLD,
        error: JobError | None = None,
    ) -> None:
        """Replace a resource by the result of `change`, a pure function, and store a new running operation.

        An unfinished operation of the resource fails. `decided`: the hold of a decision that caused the
        change. `error`: the error with which the finished operation fails. Raises NotFound, and the errors of
        `change`. After an error, nothing was changed.
        """

        async def work() -> None:
            async with self._lock:
                before = self.get(name)
                after = change(before, self.usage(name))
                if begun is not None and after is not None:
                    after = replace(after, operation=begun.name)
                if after == before:
                    self._pools.pending.discard(decided)
                    self._capacity.set_resource(name, before)
                    return
                after = after and replace(after, updated=self._now())
                await self._store(before, after, error, begun, decided)
            self._decide()

        await wait_shielded(joined(work()))

    async def _store(
        self,
        before: PersistentResource,
        after: PersistentResource | None,
        error: JobError | None,
        begun: Operation | None,
        decided: JobUid,
    ) -> None:
        name, now, endings = before.name, self._now(), list[Ending]()
        current, used = after or before, self.usage(before.name)
        if begun is not None and before.operation:
            why = JobError(CANCELLED, f"It was replaced by the operation {begun.name}.")
            endings.append(Ending(before.operation, now, public_resource(before, used), why))
        if current.operation and (after is None or after.is_settled):
            endings.append(Ending(current.operation, now, public_resource(current, used), error))
            after = after and replace(after, operation="")
        uses = tuple(reserved_use(before, now, self._capacity.nodes, after))
        # Offer none of the resource's machines to jobs until the change is stored, because it may release
        # machines.
        self._pools.show(name, before, lambda _: False)
        try:
            await self._table.save(name, after, uses, begun, endings)
        except BaseException:
            self._capacity.set_resource(name, before)
            raise
        self._pools.pending.discard(decided)
        self._capacity.set_resource(name, after)
        self._capacity.count_usage(uses)
        self._pools.unchecked.add(name)
        for ending in endings:
            self._notices.publish(JobUid(int(ending.name.rpartition("/")[2])))
        log.info("persistent resource %s: %s", name, after.state if after else "deleted")

    # --- effects of jobs and decisions ---

    def apply_decision(self, decision: Decision) -> bool:
        """Store a decision about a hold. Return False if the decision is about a job."""
        if (name := self._pools.hold_of(decision.uid)) is None:
            return False
        uid, now, error = decision.uid, self._now(), None
        if isinstance(decision, StockOut):
            text = f"The machines of {name} can never be reserved: {decision.reason}."
            error = JobError(STOCK_OUT, text)

        def change(resource: PersistentResource, _: Used) -> PersistentResource:
            match decision:
                case Admit(_, nodes):
                    return place(resource, uid, nodes, now)
                case Place(_, replica, node):
                    return place(resource, uid, ((replica, node),), now)
                case _:
                    return resource if error is None else refuse(resource, uid, error)

        self._crew.keep(partial(self._apply, name, uid, change, error), f"placing {name}")
        return True

    async def _apply(
        self, name: PersistentResourceName, uid: JobUid, change: Change, error: JobError | None
    ) -> None:
        try:
            await self.change(name, change, decided=uid, error=error)
        except NotFound:  # The resource was deleted, so the decision is dropped.
            self._pools.pending.discard(uid)

    def check(self) -> None:
        """Update resources after changes of their jobs and nodes."""
        names = tuple(self._pools.unchecked)
        self._pools.unchecked.clear()
        for name in names:
            resource = self.find(name)
            if resource is None:
                continue
            self._capacity.set_resource(name, resource)
            if resource.deleted_by is not None:
                self._cancel_jobs(name, resource.deleted_by)
            if resource.is_rebooting:
                for uid, event in self._capacity.stop_jobs(name, f"{name} is rebooting"):
                    self._report(uid, event)
            if self._settle(resource, self.usage(name)) != resource:
                settle = partial(self._apply, name, _NO_HOLD, self._settle, None)
                self._crew.keep(settle, f"settling {name}")

    def _settle(self, resource: PersistentResource, used: Used) -> PersistentResource | None:
        return settle(resource, used, bool(self._pools.jobs(resource.name)))

    def _cancel_jobs(self, name: PersistentResourceName, email: str) -> None:
        for uid in self._pools.jobs(name):
            if uid not in self._cancelled:
                self._cancelled.add(uid)
                self._crew.begin(self._cancel_job(uid, email), f"cancelling job {uid}")

    async def _cancel_job(self, uid: JobUid, email: str) -> None:
        try:
            await self._cancel(uid, email)
        except (NotFound, FailedPrecondition):
            # The job is not stored yet, or has finished. The next check tries again if necessary.
            self._cancelled.discard(uid)
