"""Drills of a job, which are faults that users inject (spec/operations#drills), and the resume report. The
report reads the log around each drill and evaluates it with `core.resume`."""

import asyncio
import re
from collections.abc import Iterator, Set
from itertools import islice
from typing import Final

from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.views import timeline_entry
from trainshed.core.errors import FailedPrecondition, closest
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import ML_ROLES, Api, ReplicaId, log_task_name
from trainshed.core.patterns import PatternError, compile_regex
from trainshed.core.requests import Faults
from trainshed.core.resume import Finding, Hit, Progress, Series, Step, find, hits, learn_series, result
from trainshed.core.units import Nanos, text_micros
from trainshed.store.logs.lines import LogLine, Stream
from trainshed.store.logs.reader import LogReader
from trainshed.wire.trainshed_v1 import timeline as records

MAX_DRILLS: Final = 100
"""Maximum number of drills (injected faults) of one job."""
_MAX_LISTED_REPLICAS: Final = 10
"""Maximum number of replicas that an error message lists."""
_ROLES: Final = {role: pool for pool, role in enumerate(ML_ROLES)} | {"chief": 0}
_ROLE_PATTERN: Final = re.compile(rf"({'|'.join(_ROLES)})(?:(?: |-|-replica-)(\d{{1,6}}))?", re.ASCII)


async def drill(call: JsonCall) -> records.Drill:
    """`POST /trainshed/v1/jobs/{job}:drill`: order a drill (a fault in the job). Raises FailedPrecondition if
    the job has finished or has had too many drills."""
    services = call.services
    job, _ = await find_job(services.reader, call.target)
    ordered = _read_drill(*call.read_body(records.DrillOrder), services.now(), job)
    if len(job.drills) >= MAX_DRILLS:
        raise FailedPrecondition(
            f"{job.name} already has the maximum of {len(job.drills)} drills. Submit the job again for more."
        )
    services.wake(await services.intake.order_drill(job.name, ordered))
    return drill_view(ordered, job.name.api)


def _read_drill(order: records.DrillOrder, faults: Faults, now: Nanos, job: Job) -> Drill:
    """Return the drill (injected fault) that a request orders for the job. Raises InvalidRequest with all
    errors."""
    kinds = tuple(DrillKind)
    if order.kind not in kinds:
        text = f"{order.kind!r} is not one of: {', '.join(kinds)}.{closest(order.kind, kinds)}"
        faults.add("kind", text)
    replica = read_replica(order.replica, job, faults)
    try:
        compile_regex(order.at_line)
    except PatternError as error:
        faults.add("atLine", str(error))
    faults.refuse()
    return Drill(0, DrillKind(order.kind), replica, now, order.at_line or None)


def drill_view(drill: Drill, api: Api) -> records.Drill:
    return records.Drill(
        number=drill.number,
        kind=drill.kind.value,
        replica=str(drill.replica),
        at_line=drill.at_line or "",
        task=log_task_name(api, drill.replica),
        state=_state(drill),
        order_time=text_micros(drill.ordered),
        fire_time=text_micros(drill.fired),
        attempt=drill.attempt,
        incarnation=drill.incarnation,
    )


def _state(drill: Drill) -> str:
    if not drill.number:
        return "ordered"
    if drill.is_armed:
        return "armed"
    return "done" if drill.done else "fired"


def read_replica(text: str, job: Job, faults: Faults) -> ReplicaId:
    """Return the replica of a job that has the name `text`. If `text` is "", return the primary replica. Adds
    errors to `faults`."""
    text = text.strip()
    replica, shown = ReplicaId(0, 0), text
    try:
        replica = ReplicaId.parse(text) if text else replica
    except ValueError:
        match = _ROLE_PATTERN.fullmatch(text.lower())
        replica = ReplicaId(_ROLES[match[1]], int(match[2] or 0)) if match else None
        shown = str(replica or repr(text))
    replicas = job.spec.replicas()
    if replica is None or replica not in replicas:
        known = ", ".join(log_task_name(job.name.api, r) for r in replicas[:_MAX_LISTED_REPLICAS])
        more = (
            f" and {len(replicas) - _MAX_LISTED_REPLICAS} more"
            if len(replicas) > _MAX_LISTED_REPLICAS
            else ""
        )
        faults.add("replica", f"{job.name} has no replica {shown}. Use one of: {known}{more}.")
    return replica or ReplicaId(0, 0)


_MAX_LINES_BEFORE: Final = 2_000
"""Number of lines before a fault that are searched for the last step."""
_MAX_SEARCHED_LINES: Final = 50_000
"""Maximum number of lines of a log that are searched for a step."""


async def report(call: JsonCall) -> records.ResumeReport:
    """`GET /trainshed/v1/jobs/{job}/resumeReport`: return whether the job has continued from its saved
    progress after each drill (injected fault)."""
    job, _ = await find_job(call.services.reader, call.target)
    entries = await call.services.reader.timeline(job.uid)
    logs = call.services.logs
    findings = tuple([await _finding(logs, job, impact) for impact in hits(job, entries)])
    by_number = {finding.hit.drill.number: finding for finding in findings}
    return records.ResumeReport(
        name=str(job.name),
        result=result(findings).value,
        drills=tuple(_view(job, drill, by_number.get(drill.number)) for drill in job.drills),
    )


async def _finding(logs: LogReader, job: Job, hit: Hit) -> Finding:
    progress = await _progress(logs, job, hit)
    first_line = 0
    if hit.restarted:
        lines = _lines(logs, job, {hit.drill.replica}, hit.restarted, hit.until)
        first_line = await asyncio.to_thread(lambda: next((line.at for line in lines), 0))
    in_bucket = bool(job.spec.job_dir or job.spec.base_output_directory)
    return find(hit, progress, first_line, in_bucket=in_bucket, over=job.state.is_final)


async def _progress(logs: LogReader, job: Job, hit: Hit) -> Progress:
    """Return the steps in the log of the replica that the drill (injected fault) hit. If that log contains no
    steps, use the log of the primary replica. If that log contains none either, use the logs of all replicas.
    """
    fault = hit.restarted or hit.ended + 1
    for replicas in dict.fromkeys((frozenset({hit.drill.replica}), frozenset({ReplicaId(0, 0)}), None)):
        page = await logs.page(
            job.uid, replicas=replicas, end=fault, limit=_MAX_LINES_BEFORE, descending=True
        )
        recent_lines = [line for line in page.lines if line.stream is not Stream.SERVICE]
        series = await asyncio.to_thread(learn_series, recent_lines)
        if series is None or not (
            steps := await asyncio.to_thread(list, filter(None, map(series.step, recent_lines)))
        ):
            continue
        first = await _first_step(series, _lines(logs, job, replicas, 0, fault))
        after = None
        if hit.restarted:
            lines = _lines(logs, job, replicas, hit.restarted, hit.until)
            after = await _first_step(series, lines)
        step_numbers = [step.number for step in steps if step.at >= hit.began]
        source = ", ".join(log_task_name(job.name.api, replica) for replica in replicas or ())
        # If the lines are from all replicas, do not check the order of the steps, because the logs of several
        # replicas have no common order.
        ascending = not source or step_numbers == sorted(step_numbers, reverse=True)
        return Progress(
            source=source, word=series.word, first=first, before=steps[0], after=after, ascending=ascending
        )
    return Progress()


async def _first_step(series: Series, lines: Iterator[LogLine]) -> Step | None:
    """Return the first step in the lines. The lines are read in a thread, because the service does not
    control their size."""
    return await asyncio.to_thread(lambda: next(filter(None, map(series.step, lines)), None))


def _lines(
    logs: LogReader, job: Job, replicas: Set[ReplicaId] | None, start: int, end: int
) -> Iterator[LogLine]:
    """Yield the lines that programs printed from `start` until before `end` (0 = no end). At most
    _MAX_SEARCHED_LINES lines are read. Blocks."""
    for entry, source in islice(logs.new_entries(job.uid, {}, start, replicas), _MAX_SEARCHED_LINES):
        if end and entry.t >= end:
            return
        line = source.line(entry)
        if line.stream is not Stream.SERVICE:
            yield line


def _view(job: Job, drill: Drill, finding: Finding | None) -> records.ResumeFinding:
    shown = drill_view(drill, job.name.api)
    if finding is None:
        reason = "it has not fired yet"
        if job.state.is_final:
            reason = "it never fired: the job finished before" + (
                f" a line matched {drill.at_line!r}" if drill.at_line else " its replica ran"
            )
        return records.ResumeFinding(drill=shown, why=reason, advice=reason + ".")
    hit, progress = finding.hit, finding.progress
    return records.ResumeFinding(
        drill=shown,
        outcome=finding.outcome.value,
        why=finding.why or "",
        advice=finding.advice,
        verdict=timeline_entry(hit.verdict) if hit.verdict else None,
        restart_time=text_micros(hit.restarted),
        down_seconds=_seconds(finding.downtime),
        silent_seconds=_seconds(finding.silence),
        first_step=progress.first and progress.first.number,
        step_before=progress.before and progress.before.number,
        step_after=progress.after and progress.after.number,
        lost=finding.lost,
        unit=progress.word,
        steps_of=progress.source or "",
    )


def _seconds(length: int | None) -> float | None:
    return None if length is None else round(length / 10**9, 3)
