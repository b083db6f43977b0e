"""What the API asks about room: who waits and why, what there is, and that nodes or quotas were changed."""

from collections.abc import Awaitable, Callable

from trainshed.controller.room import Room
from trainshed.core.capacity import NodeStatus, Preflight, QuotaStatus, Waiting
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid


class Answers:
    """Of one controller; on its event loop. See `trainshed.api.calls.services.RoomView`."""

    def __init__(
        self, room: Room, now: Callable[[], int], changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._room = room
        self._now = now
        self._changed = changed

    def why(self, uid: JobUid) -> Waiting | None:
        return self._room.why(uid, self._now())

    def position(self, uid: JobUid) -> int:
        return self._room.position(uid)

    def preflight(self, job: Job) -> Preflight:
        return self._room.preflight(job, self._now())

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._room.node_statuses()

    def quotas(self, project_id: str, region: str) -> tuple[QuotaStatus, ...]:
        return self._room.quota_statuses(project_id, region)

    async def capacity_changed(self) -> None:
        await self._changed()
