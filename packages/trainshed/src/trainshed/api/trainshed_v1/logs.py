"""Streams live log lines as NDJSON: those of a job's replicas, of all trials of a tuning job, or of a
pipeline's job.

The lines of each replica come in their order and without gaps. Lines that exist already are merged by time
across replicas; later lines are sent as they come. A follower that reconnects names the last line that it has
seen of every writer.
"""

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Final, assert_never

import msgspec
from msgspec import UNSET, Struct, field

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_nanos
from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import FilterError
from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.streams import SIGN_OF_LIFE, Pace
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId, log_task_name
from trainshed.core.pipelines import Pipeline
from trainshed.core.streams import StreamSource
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.logs.lines import LogPosition, Stream, read_line
from trainshed.store.logs.onward import JobLog, Texts
from trainshed.store.logs.onward import Writer as LogWriter
from trainshed.store.logs.segments import decoded_lines
from trainshed.store.port import NO_JOB
from trainshed.wire.trainshed_v1.timeline import LogLine

_AT_ONCE: Final = 64 << 10
"""Bytes that are read at once. Whoever follows and does not read holds some five times as many, and may have
thousands of streams."""
_THREAD: Final = ThreadPoolExecutor(1, "following")
"""One for all streams: while several threads compute, the event loop waits for each of them after every write
to a socket, so that those who follow a log would keep up all others."""
_LEAST: Final = 4 << 10
"""Fewest bytes that are read of each writer."""
_LONGEST_TAIL: Final = 10_000
_PLACE: Final = re.compile(r"(\d{1,9})/([a-z]+[\d-]*)/(\d{1,9})/(\d{1,12})")

Replicas = frozenset[ReplicaId] | None
"""The replicas whose lines are wanted; None for all."""


async def logs(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET
    /trainshed/v1/jobs/{job}/logs[?follow=true][&replica=R][&tail=N][&since=TIME][&after=PLACES]`:
    stream the lines of the log, a `LogLine` each.

    With `follow` the stream goes on until the job is over and everything was sent. `after`: for a client
    that reconnects, the last line that it has seen of each writer, TRIAL/REPLICA/ATTEMPT/N.
    """
    work, _ = await find_work(call.services.reader, call.target)
    programs = _Programs(call.services, work)
    await programs.look()
    replicas = chosen_replicas(work, await _spec(call.services, work), call.texts("replica"))
    await _start(call, programs.sources, replicas)
    return _lines(call, programs, replicas, follow=call.flag("follow"))


async def _spec(services: Services, work: Work) -> JobSpec | None:
    """Return the specification that lists the replicas; None if the pipeline's job was deleted."""
    match work:
        case Job():
            return work.spec
        case TuningJob():
            return work.spec.trial
        case Pipeline():
            try:
                child, _ = await services.reader.job_by_uid(work.job)
            except NotFound:
                return None
            return await _spec(services, child)
        case _:
            assert_never(work)


class _Writer(Struct):
    """A replica in one attempt, with the lines that are read and not sent yet."""

    log: LogWriter
    read: Texts = ()
    #: How many of these were sent.
    sent: int = 0
    #: There may be more to read.
    more: bool = True

    @property
    def is_drained(self) -> bool:
        """Whether everything that was read has been sent."""
        return self.sent == len(self.read)

    def until(self, bound: str | None) -> Texts:
        """Take the unsent lines up to the time `bound` (None: all)."""
        first, end = self.sent, len(self.read)
        if bound is not None:
            end = bisect_right(self.read, bound, lo=first, key=_moment)
        taken, self.sent = self.read[first:end], end
        if self.is_drained:
            self.read, self.sent = (), 0
        return taken


class _Source(Struct):
    """A job whose lines are streamed."""

    job: Job
    #: The position after which its lines are sent.
    position: LogPosition = field(default_factory=dict[ReplicaId, tuple[int, int]])
    log: JobLog | None = None
    writers: dict[LogWriter, _Writer] = field(default_factory=dict[LogWriter, _Writer])
    #: There may be more to read.
    more: bool = True
    #: No further lines will come.
    over: bool = False

    def look(self, services: Services, replicas: Replicas) -> None:
        """Find the job's writers, and mark them for reading."""
        if self.log is None:
            self.log = services.logs.onward(self.job.uid, self.position, replicas)
        for writer in self.log.writers():
            known = self.writers.setdefault(writer, _Writer(writer))
            known.more = True

    def fill(self, most: int) -> None:
        """Read on for writers of which everything was sent, about `most` bytes each."""
        for writer in self.writers.values():
            if writer.more and writer.is_drained:
                texts, writer.more = writer.log.read(most, partial(log_texts, self.job))
                writer.read, writer.sent = texts or (), 0
        self.more = any(writer.more or not writer.is_drained for writer in self.writers.values())


class _Programs:
    """The jobs that write the lines of a work; finished ones are no longer listed."""

    def __init__(self, services: Services, work: Work) -> None:
        self._services = services
        self._uid = work.uid
        self._known: dict[JobUid, _Source] = {}
        self._begun: dict[JobUid, int] = {}
        #: For each tuning job, the newest known job of its trials.
        self._newest: dict[JobUid, JobUid] = {}
        self.is_over = False

    @property
    def sources(self) -> list[_Source]:
        """Return the jobs of which lines may still come."""
        return [source for source in self._known.values() if not (source.over and not source.more)]

    def news(self) -> set[JobUid]:
        """Return the jobs whose notices may mean new lines, new programs, or the end."""
        return {self._uid, *self._begun, *(source.job.uid for source in self.sources)}

    async def look(self) -> None:
        """Find the jobs and which of them are over. States are read before lines, so that a job's end is not
        reported before its last lines can be read."""
        for source in self.sources:
            source.more = True
        self.is_over = await self._look(self._uid)

    async def _look(self, uid: JobUid) -> bool:
        """Look at a work and what it runs. Returns whether it is over, or was deleted."""
        try:
            work, _ = await self._services.reader.job_by_uid(uid)
        except NotFound:
            if uid in self._known:
                self._known[uid].over = True
            return True
        match work:
            case Job():
                self._see(work)
            case TuningJob():
                await self._look_at_trials(work)
            case Pipeline():
                self._begun.setdefault(work.job, 0)
                await self._look(work.job)
            case _:
                assert_never(work)
        return work.state.is_final

    async def _look_at_trials(self, work: TuningJob) -> None:
        fresh: set[JobUid] = set()
        if self._begun.get(work.uid) != work.begun:
            self._begun[work.uid] = work.begun
            newest = self._newest.get(work.uid, NO_JOB)
            for child in await self._services.reader.children(work.uid, newest):
                self._newest[work.uid] = child.uid
                if isinstance(child, Job):
                    fresh.add(child.uid)
                    self._see(child)
        for source in [known for known in self._known.values() if not known.over]:
            if source.job.uid not in fresh:
                await self._look(source.job.uid)

    def _see(self, job: Job) -> None:
        source = self._known.setdefault(job.uid, _Source(job))
        source.over = job.state.is_final


async def _lines(
    call: JsonCall, programs: _Programs, replicas: Replicas, *, follow: bool
) -> AsyncGenerator[bytes]:
    services, notices = call.services, call.services.notices
    pace, loop = Pace(notices), asyncio.get_running_loop()
    while True:
        await pace.begin()
        counts = {uid: notices.count(uid) for uid in programs.news()}
        await programs.look()
        fresh = programs.news() - counts.keys()
        for source in programs.sources:
            source.look(services, replicas)
        while lines := await loop.run_in_executor(_THREAD, _read, programs.sources):
            pace.spoke()
            yield lines
        if programs.is_over or not follow:
            return
        if pace.is_silent():
            yield SIGN_OF_LIFE
        if not fresh:
            await pace.news({uid: counts[uid] for uid in programs.news()})


def _read(sources: Sequence[_Source]) -> bytes:
    """Return the next lines of all sources, by time, about _AT_ONCE bytes of them; b"" if there are none
    now."""
    share = max(_AT_ONCE // max(sum(len(source.writers) for source in sources), 1), _LEAST)
    for source in sources:
        source.fill(share)
    writers = [writer for source in sources for writer in source.writers.values()]
    # A writer with more to read may have lines that are earlier than later ones of others.
    bound = min(
        (_moment(writer.read[-1]) for writer in writers if writer.more and writer.read),
        default=None,
    )
    taken = [lines for writer in writers if (lines := writer.until(bound))]
    if len(taken) > 1:
        # The sort is stable: of lines with the same time, those of the first writer come first.
        return "".join(sorted(chain.from_iterable(taken), key=_moment)).encode()
    return "".join(taken[0]).encode() if taken else b""


def _moment(text: str) -> str:
    return text[:AT]


async def _start(call: JsonCall, sources: Sequence[_Source], replicas: Replicas) -> None:
    """Set where the stream begins: at the beginning, at a time, or before the last N lines, but always after
    what was seen."""
    tail, since = call.number("tail"), call.parameter("since")
    seen = seen_places(call.texts("after"))
    logs = call.services.logs
    if tail:
        count = min(tail, _LONGEST_TAIL)
        # First where each replica is, so that what it writes while the last lines are read is sent, too.
        begins = [await _before(call, source.job, replicas, None) for source in sources]
        last = [
            (log_line.at, index, log_line)
            for index, source in enumerate(sources)
            for log_line in await logs.tail(source.job.uid, count, replicas=replicas)
        ]
        for _, index, log_line in sorted(last, key=lambda entry: entry[:2])[-count:]:
            place, begin = (log_line.attempt, log_line.n - 1), begins[index]
            begin[log_line.replica] = min(begin.get(log_line.replica, place), place)
        for source, begin in zip(sources, begins, strict=True):
            source.position = begin
    elif since:
        try:
            at = moment(since)
        except FilterError as error:
            raise InvalidRequest((Violation("since", str(error)),)) from None
        for source in sources:
            source.position = await _before(call, source.job, replicas, at)
    for source in sources:
        parent = source.job.parent
        source.position = {**source.position, **seen.get(parent.trial if parent else 0, {})}


async def _before(
    call: JsonCall, job: Job, replicas: Replicas, at: Nanos | None
) -> dict[ReplicaId, tuple[int, int]]:
    """Return each replica's last line before the time `at`; None = its very last line."""
    position: dict[ReplicaId, tuple[int, int]] = {}
    for replica in (*job.spec.replicas(), SERVICE) if replicas is None else replicas:
        page = await call.services.logs.page(
            job.uid, replicas={replica}, end=at, limit=1, descending=True
        )
        for last in page.lines:
            position[replica] = (last.attempt, last.n)
    return position


def chosen_replicas(work: Work, spec: JobSpec | None, names: tuple[str, ...]) -> Replicas:
    """Return the writers with these ids (`workerpool0-0`) or tasks (`master-replica-0`, `service`); None for
    all. Raises InvalidRequest for an unknown one."""
    if not names or spec is None:
        return None
    known = {str(replica): replica for replica in spec.replicas()}
    known |= {log_task_name(work.name.api, replica): replica for replica in known.values()}
    known[SERVICE_TASK] = SERVICE
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidRequest(
            (
                Violation(
                    "replica",
                    f"{work.name} has no replica {unknown[0]!r}; it has: {', '.join(known)}.",
                ),
            )
        )
    return frozenset(known[name] for name in names)


def seen_places(texts: Sequence[str]) -> Mapping[int, LogPosition]:
    """Parse texts `TRIAL/REPLICA/ATTEMPT/N` into positions by trial (0 = no trial). Raises InvalidRequest."""
    places: dict[int, dict[ReplicaId, tuple[int, int]]] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidRequest((_violation(text),))
        try:
            replica = SERVICE if match[2] == SERVICE_TASK else ReplicaId.parse(match[2])
        except ValueError:
            raise InvalidRequest((_violation(text),)) from None
        places.setdefault(int(match[1]), {})[replica] = (int(match[3]), int(match[4]))
    return places


def _violation(text: str) -> Violation:
    return Violation(
        "after",
        f"{text!r} is no place in a log: give the trial (0 = none), replica, attempt and number of the "
        "last line that was seen, as in 0/workerpool0-0/1/17.",
    )


AT: Final = len('{"at":"2026-11-22T08:46:44.123456789Z')
"""Number of characters at the beginning of a line that hold its time. Lines sort by time as these sort as
texts."""

_encode: Final = msgspec.json.Encoder().encode
_STREAMS: Final = {stream.value: stream for stream in Stream}


def log_texts(job: Job, source: StreamSource, data: bytes) -> Sequence[str]:
    """Return a `LogLine` per line, with line ends, for `data`, which holds whole lines of a replica of the
    job. Lines that a crash of the machine has damaged are left out."""
    replica, task = str(source.replica), log_task_name(job.name.api, source.replica)
    trial = job.parent.trial if job.parent and job.parent.trial else UNSET
    texts: list[str] = []
    for entry in decoded_lines(data):
        reading = read_line(_STREAMS[entry.s], entry.m)
        line = LogLine(
            at=text_nanos(entry.t),
            replica=replica,
            task=task,
            attempt=source.attempt,
            severity=reading.severity.value,
            message=reading.text,
            n=entry.n,
            trial=trial,
        )
        texts.append(f"{_encode(line).decode()}\n")
    return texts
