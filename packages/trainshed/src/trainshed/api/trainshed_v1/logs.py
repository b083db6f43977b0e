"""A job's log: as a stream of NDJSON, of a job's replicas, of all trials of a tuning job, or of a pipeline's
job; and by pages, for readers who look at a part of millions of lines.

In a stream the lines of each replica come in their order and without gaps. Lines that exist already are
merged by time across replicas; later lines are sent as they come. A follower that reconnects names the last
line that it has seen of every writer.

Pages go backwards from the log's end or from any line, forwards from a line, or from a time on. A page with a
filter examines a bounded number of lines, and then says that there is more to examine.
"""

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, Struct, field

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_nanos
from trainshed.api.resources.jobs import find_job, find_work
from trainshed.api.trainshed_v1 import views
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
from trainshed.store.logs.lines import LogCursor, LogPage, LogPosition, Severity, Stream, read_line
from trainshed.store.logs.lines import LogLine as StoredLine
from trainshed.store.logs.onward import JobLog, Texts
from trainshed.store.logs.onward import Writer as LogWriter
from trainshed.store.logs.segments import decoded_lines
from trainshed.store.port import NO_JOB
from trainshed.wire.trainshed_v1 import timeline as records

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
    position: dict[ReplicaId, tuple[int, int]] = field(
        default_factory=dict[ReplicaId, tuple[int, int]]
    )
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
    tail, since = call.number("tail"), call.moment("since")
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
        for source in sources:
            source.position = await _before(call, source.job, replicas, since)
    for source in sources:
        parent = source.job.parent
        for replica, place in seen.get(parent.trial if parent else 0, {}).items():
            source.position[replica] = max(place, source.position.get(replica, place))


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
        line = records.LogLine(
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


_DEFAULT: Final = 500
_LARGEST: Final = 2_000
_LONGEST: Final = 1 << 20
"""Characters of lines that are read at a time; a page has at most twice as many."""
_LOOKED_AT: Final = 20_000
"""Lines that one request with a filter examines."""
_CHUNK: Final = 2_000
_SETTLED: Final = 10**9
"""Nanoseconds after which no earlier line of another replica can arrive."""
_LONGEST_SEARCH: Final = 200


async def page(call: JsonCall) -> records.LogPage:
    """`GET /trainshed/v1/jobs/{job}/logPage[?before=PLACE][&after=PLACE][&from=TIME][&limit=N][&replica=R]`:
    return lines of the log, oldest first: the last ones, those before or after a place, or those from a time
    on.

    A page of long lines has fewer than `limit`.

    `&severity=S`: only lines of at least this severity. `&search=TEXT`: only lines that hold this text, in
    either case. If a filter finds too few lines among 20,000, the answer says `more`.
    """
    job, _ = await find_job(call.services.reader, call.target)
    limit = min(call.number("limit") or _DEFAULT, _LARGEST)
    passes = _filter(call)
    replicas = chosen_replicas(job, job.spec, call.texts("replica"))
    before, after = _place(call, "before"), _place(call, "after")
    start = call.moment("from")
    forwards = after is not None or bool(start)
    # The log of a running job is read up to a moment ago, because later lines may still be on their way.
    end = None if job.state.is_final else call.services.now() - _SETTLED
    lines: list[StoredLine] = []
    at, seen, more = after if forwards else before, 0, False
    room = _LONGEST
    while len(lines) < limit and room > 0:
        if passes is not None and seen >= _LOOKED_AT:
            more = True
            break
        wanted = limit if passes is None else _CHUNK
        read: LogPage = await call.services.logs.page(
            job.uid,
            replicas=replicas,
            start=start,
            end=end if forwards else None,
            after=at,
            limit=wanted,
            longest=_LONGEST,
            descending=not forwards,
        )
        passing = read.lines
        if passes is not None:
            passing = await asyncio.to_thread(list, filter(passes, read.lines))
        taken = passing[: limit - len(lines)]
        lines += taken
        room -= sum(len(line.text) for line in taken)
        if read.lines:
            at = (lines if len(lines) == limit else read.lines)[-1].cursor
        seen += len(read.lines)
        if read.next is None:
            break
    is_full = more or len(lines) == limit or room <= 0
    if not forwards:
        lines.reverse()
    return records.LogPage(
        name=str(job.name),
        lines=tuple(views.paged_line(job.name.api, line) for line in lines),
        earlier=_earlier(lines, at, is_full=is_full, forwards=forwards),
        later=_later(lines, at, after, forwards=forwards),
        more=more,
        over=job.state.is_final,
        tasks=(
            *(log_task_name(job.name.api, replica) for replica in job.spec.replicas()),
            SERVICE_TASK,
        ),
    )


def _earlier(
    lines: list[StoredLine], at: LogCursor | None, *, is_full: bool, forwards: bool
) -> str:
    if forwards:
        return str(lines[0].cursor) if lines else str(at or "")
    return str(at) if is_full and at is not None else ""


def _later(
    lines: list[StoredLine], at: LogCursor | None, after: LogCursor | None, *, forwards: bool
) -> str:
    if forwards:
        return str(at or after or "")
    return str(lines[-1].cursor) if lines else ""


def _filter(call: JsonCall) -> Callable[[StoredLine], bool] | None:
    """Return the filter that the request names; None: everything passes. Raises InvalidRequest."""
    severity, text = call.parameter("severity"), call.parameter("search")
    faults: list[Violation] = []
    if severity and severity not in tuple(Severity):
        names = ", ".join(Severity)
        faults.append(Violation("severity", f"{severity!r} is not one of: {names}."))
    if len(text) > _LONGEST_SEARCH:
        faults.append(Violation("search", f"It may have at most {_LONGEST_SEARCH} characters."))
    if faults:
        raise InvalidRequest(tuple(faults))
    if not severity and not text:
        return None
    order: dict[Any, int] = {level: rank for rank, level in enumerate(Severity)}
    least = order.get(severity, 0)
    holds = re.compile(re.escape(text), re.IGNORECASE).search
    return lambda line: order[line.severity] >= least and bool(not text or holds(line.text))


def _place(call: JsonCall, name: str) -> LogCursor | None:
    text = call.parameter(name)
    if not text:
        return None
    try:
        return LogCursor.parse(text)
    except ValueError as wrong:
        raise InvalidRequest((Violation(name, str(wrong)),)) from None
