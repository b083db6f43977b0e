"""Starts the runs of schedules. One task waits for the earliest run of all schedules, or for a change.

The pipeline job of a run and the new state of its schedule are stored in one transaction. A kill of the
service therefore neither loses nor repeats a run.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from trainshed.access.account_tokens import OWNER_EMAIL, account_fault
from trainshed.access.permissions import OWNER, ROLES, authorize
from trainshed.access.principals import Principal, Rights
from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.audit import audit_call
from trainshed.api.calls.errors import CODES
from trainshed.api.calls.impersonation import reject_escalation, texts_of
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.api.resources.submission import store_works
from trainshed.core import errors
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.eventloop.background import first_of
from trainshed_pipelines.runs import service as jobs
from trainshed_pipelines.runs.table import Runs, write_spec
from trainshed_pipelines.schedules import records
from trainshed_pipelines.schedules.records import Author, Response, Schedule, ScheduleName
from trainshed_pipelines.schedules.table import Schedules

log = logging.getLogger(__name__)

_MAX_WAIT: Final = 60.0
"""Maximum seconds between two reads of the clock, which jumps when a suspended machine resumes."""
_RETRY_INTERVAL: Final = 10.0
"""Seconds before a failed step is repeated."""
_MAX_PREFIX: Final = 128 - len("-2026010102030405060-20260101020304")
_CREATE: Final = f"{V1}.PipelineService.CreatePipelineJob"


class ScheduleLoop:
    """Starts runs. Requests that change a schedule hold `lock`, and call `wake` afterwards."""

    def __init__(self, schedules: Schedules, runs: Runs, faults: jobs.ComponentFault) -> None:
        self.schedules, self.runs, self.component_faults = schedules, runs, faults
        self.lock, self._changed = asyncio.Lock(), asyncio.Event()
        self.wake = self._changed.set

    async def run(self, services: Services, _registry: Registry) -> None:
        """Start runs at their times, until the service stops."""
        while not services.closing.is_set():
            self._changed.clear()
            seen, now = services.notices.latest, services.now()
            blocking, waits = await self.start_due(services)
            if (due := await self.schedules.next_due(now)) is not None:
                waits += [_MAX_WAIT, max(0.0, (due - services.now()) / 1e9)]
            ends = (services.notices.wait_beyond(uid, seen, _MAX_WAIT) for uid in blocking)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await first_of(self._changed.wait(), services.closing.wait(), *ends)

    async def start_due(self, services: Services) -> tuple[set[JobUid], list[float]]:
        """Carry out one step of each schedule that is due. Return the pipeline jobs for whose end runs wait,
        and the seconds until further steps."""
        blocking, waits = set[JobUid](), list[float]()
        for due in await self.schedules.due(services.now()):
            try:
                blocking.update(await self._advance(services, due.name, waits))
            except errors.NotFound:
                continue  # A request has just deleted the schedule.
            except Exception as failure:
                # Any exception is caught, because other schedules must not wait for this one.
                log.error("%s cannot start a run, and tries again: %r", due.name, failure)
                waits.append(_RETRY_INTERVAL)
        return blocking, waits

    async def _advance(
        self, services: Services, name: ScheduleName, waits: list[float]
    ) -> tuple[JobUid, ...]:
        """Carry out one step of a schedule. Return the pipeline jobs for whose end it waits. Add 0 to `waits`
        if further steps may follow."""
        async with self.lock:
            schedule = await self.schedules.get(name)
            unfinished = await self.schedules.unfinished(schedule.unfinished)
            changed, run = records.step(schedule, services.now(), len(unfinished))
            if run is None and changed == schedule:
                return unfinished
            if run is None:
                await self.schedules.store(changed)
            else:
                await self._start(services, schedule, run, unfinished)
            waits.append(0.0)
        return ()

    async def _start(
        self, services: Services, schedule: Schedule, run: Nanos, unfinished: tuple[JobUid, ...]
    ) -> None:
        """Start a run, or store the reason why it cannot start. Raises Unavailable."""
        project, now = schedule.name.project_id, services.now()

        async def create() -> None:
            spec, request = await self.runs.spec(schedule.uid), json.loads(schedule.request_json)
            public = {**request["pipelineJob"], "pipelineSpec": spec}
            require_rights(services, principal, project, public)
            requested = await asyncio.to_thread(
                jobs.check_public, services, project, public, "", self.component_faults
            )
            prefix = request.get("pipelineJobId") or jobs.id_prefix(requested.template)
            time = f"{datetime.fromtimestamp(run // 10**9, UTC):%Y%m%d%H%M%S}"
            # Another schedule may start a run of the same pipeline at the same time.
            for suffix in (time, f"{schedule.uid}-{time}"):
                with_id = replace(requested, pipeline_job_id=f"{prefix[:_MAX_PREFIX]}-{suffix}")
                job = jobs.new_pipeline_job(services, schedule.name.parent, with_id, str(schedule.name))
                started = records.record_start(schedule, run, job.uid, unfinished, now)
                writes = (write_spec(job.uid, spec), self.schedules.write(started))
                with contextlib.suppress(errors.AlreadyExists):
                    return await store_works(services, principal, job, writes=writes)
            raise errors.AlreadyExists(f"A pipeline job of this run exists: {prefix}-{time}.")

        try:
            principal = principal_of(services, schedule.author)
            await audit_call(create, services, principal, _CREATE, project=project)
        except errors.Unavailable:
            raise
        except (errors.PermissionDenied, errors.Unauthenticated) as denied:
            log.warning("%s is paused: %s", schedule.name, denied)
            text = f"Paused: {denied} Another user can resume the schedule."
            paused = replace(records.pause(schedule, now), response=Response(run, text))
            await self.schedules.store(paused)
        except errors.RequestError as fault:
            text = f"{CODES[type(fault)].name}: {fault}"
            await self.schedules.store(records.record_failure(schedule, run, text, now))


def principal_of(services: Services, author: Author) -> Principal:
    """Return the author with the current rights. Raises Unauthenticated if the author is a service account
    that is disabled or was deleted."""
    book, email = services.access.book, author.email
    if fault := account_fault(email, author.since // 10**6, book):
        raise errors.Unauthenticated(f"The service account {email} {fault}.")
    if email == OWNER_EMAIL:
        return Principal(email, Rights(ROLES[OWNER]))
    # The groups are those of a sign-in, which a revocation invalidates.
    revocation = book.revocations.get(email)
    is_revoked = revocation is not None and revocation.at >= author.since
    return Principal(email, book.policy.rights(email, () if is_revoked else author.groups))


def require_rights(services: Services, principal: Principal, project: str, public: Mapping[str, Any]) -> None:
    """Raise PermissionDenied unless the principal may create this pipeline job (public JSON). Raises
    FailedPrecondition if the job's service account is disabled or was deleted."""
    authorize(principal, _CREATE, (project,))
    reject_escalation(principal, services, [*texts_of(public)])
