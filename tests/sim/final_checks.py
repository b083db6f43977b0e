"""Checks at the end of a simulated service: every accepted request has had its effect."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.sim import audit
from tests.sim.clients import Accepted
from tests.sim.engine.programs import Incarnation, SimSlot
from tests.sim.invariants import Books
from tests.sim.reference_rows import REDUCER
from trainshed.core.cluster import has_reducers
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.store.sqlite.reader import Reader

_SIGHTINGS = ("replica_started", "replica_exited", "running", "cancel_requested", "drill_ordered")
"""Timeline entries with the time of an event, which the controller may receive later."""
_PAGE = 3
_CANCEL_TIMEOUT = 90 * 10**9
"""ns until a cancel reaches programs and they end."""


async def unmet_requests(reader: Reader, books: Books, accepted: Accepted) -> list[str]:
    """Return a description of each accepted request that had no effect."""
    faults: list[str] = []
    lived: defaultdict[JobUid, list[tuple[SimSlot, Incarnation]]] = defaultdict(list)
    for sim_slot, life in books.world.lived:
        lived[sim_slot.job_uid].append((sim_slot, life))
    for uid in {*accepted.submits, *lived}:
        job, _ = await reader.job_by_uid(uid)
        story = await reader.timeline(uid)
        books.rules.update(e.details["rule"] for e in story if e.kind == "verdict")
        faults += _of_submit(job, story, in_order=books.clock_is_true)
        faults += audit.timeline_faults(
            uid, job.created, lived[uid], story, clock_is_true=books.clock_is_true
        )
        if isinstance(job, Job):
            faults += _of_its_story(job, story)
            gives = books.judges[uid].reference.rows.gives.get(REDUCER)
            if gives is not None and has_reducers(job.spec) and books.clock_is_true:
                faults += audit.early_restarts(uid, lived[uid], gives.window)
            faults += _of_requests(job, accepted)
    faults += await _of_lists(reader, accepted)
    for uid, at in accepted.cancels.items():
        job, _ = await reader.job_by_uid(uid)
        if isinstance(job, Job):
            faults += (f"{fault}\n{books.judges[uid].history_text()}" for fault in _of_cancel(job, at))
        else:
            faults += await books.families.of_cancel(job, at)
            faults += _of_cancelled_trials(books, job, at)
    faults += await books.families.broken()
    return faults


def _of_requests(job: Job, accepted: Accepted) -> Iterator[str]:
    """Yield requests accepted before the end of a job that had no effect."""
    labels = accepted.labels.get(job.uid, job.labels)
    if job.labels != labels:
        yield f"job {job.uid} was given the labels {labels} and has {job.labels}"
    # A request that arrives together with a cancel may find the job finished.
    if len(job.drills) < accepted.drills[job.uid] and job.state is not JobState.CANCELLED:
        yield f"of job {job.uid} {accepted.drills[job.uid]} drills were ordered: {job.drills}"


def _of_cancelled_trials(books: Books, work: Work, at: int) -> Iterator[str]:
    """Yield jobs that were not cancelled with their work, immediately or when a service runs again."""
    if not books.clock_is_true or work.state is not JobState.CANCELLED:
        return
    latest = max(at, books.blocked_until) + _CANCEL_TIMEOUT
    for job in books.families.jobs.values():
        is_its = job.parent is not None and job.parent.uid == work.uid
        if is_its and job.created < at and job.ended > latest and job.state is not JobState.CANCELLED:
            yield f"{work.name} was cancelled at {at}, and its job {job.uid} is {job.state}"


def _of_its_story(job: Job, story: tuple[TimelineEntry, ...]) -> Iterator[str]:
    """Yield outcomes that the timeline does not contain exactly once."""
    kinds = Counter(entry.kind for entry in story)
    wanted = {job.state.value.lower(): 1, "drill_ordered": len(job.drills)}
    wanted["drill_fired"] = sum(bool(drill.fired) for drill in job.drills)
    if job.outcome is not None and job.outcome.rule.startswith("cancelled_"):
        wanted["cancel_requested"] = 1
    for kind, count in wanted.items():
        if kinds[kind] != count:
            yield f"job {job.uid}: {kind} is told {kinds[kind]} times, and not {count}"


async def _of_lists(reader: Reader, accepted: Accepted) -> list[str]:
    """Return jobs that are not on exactly one page of their project's list."""
    jobs = [(await reader.job_by_uid(uid))[0] for uid in accepted.submits]
    faults: list[str] = []
    for project in {job.name.project_id for job in jobs}:
        after, seen = JobUid(0), Counter[JobUid]()
        while page := await reader.jobs(JobQuery(project, None, None, after=after, limit=_PAGE)):
            seen.update(job.uid for job, _ in page)
            after = page[-1][0].uid
        own = [job for job in jobs if job.name.project_id == project]
        faults += [
            f"job {job.uid} is listed {seen[job.uid]} times"
            for job in own
            if seen[job.uid] != 1 and (isinstance(job, Pipeline) or job.parent is None)
        ]
    return faults


def _of_submit(job: Work, story: tuple[TimelineEntry, ...], *, in_order: bool) -> Iterator[str]:
    """spec/lifecycle#end: every job ends, and its timeline is in order."""
    if not job.state.is_final:
        yield f"job {job.uid} was accepted and is {job.state} in the end"
    times = [entry.at for entry in story if entry.kind not in _SIGHTINGS]
    if in_order and times != sorted(times):
        kinds = [(entry.at, entry.kind) for entry in story]
        yield f"the timeline of job {job.uid} goes backwards: {kinds}"


def _of_cancel(job: Job, at: int) -> Iterator[str]:
    """spec/lifecycle#cancel: after an accepted cancel the state is CANCELLED, unless the primary had already
    exited.
    """
    primary = next((r.exit for r in job.replicas if r.id.is_primary), None)
    if job.state is not JobState.CANCELLED and (primary is None or primary.ended > at):
        yield f"job {job.uid} was cancelled at {at} and is {job.state}"
