"""Schedules, and the decision which of their runs start (facts/pipelines#schedules). Pure.

Times are nanoseconds since the epoch. 0 means that the event has not happened, or that no limit is set.
"""

import enum
from datetime import datetime
from itertools import islice, takewhile
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.calls.parents import LocationName
from trainshed.core.errors import FailedPrecondition
from trainshed.core.names import PLACE, JobUid, read_name
from trainshed.core.units import Nanos, whole_second
from trainshed_pipelines.schedules.cron import last_run, next_run, runs

_MINUTE: Final = 60 * 10**9
MAX_DELAY: Final = 10 * _MINUTE
"""Maximum delay (ns) of a run that starts late, for example after a restart of the service. Other missed runs
are skipped."""
_MAX_COUNTED: Final = 100
"""Maximum number of missed runs that are counted."""
_SKIPPED: Final = "Skipped"


class State(enum.StrEnum):
    """The state of a schedule. The values are the public names."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    #: All runs have been started, or the end time has passed.
    COMPLETED = "COMPLETED"


class ScheduleName(Struct, frozen=True, order=True):
    """A schedule's name: `projects/P/locations/L/schedules/S`."""

    project_id: str
    location: str
    schedule_id: str

    def __str__(self) -> str:
        return f"{self.parent}/schedules/{self.schedule_id}"

    @property
    def parent(self) -> LocationName:
        return LocationName(self.project_id, self.location)

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "ScheduleName":
        """Parse a name. Raises InvalidRequest on the field `of` for an invalid name."""
        return ScheduleName(*read_name(name, f"{PLACE}/schedules/SCHEDULE", of))


class Terms(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields that the user sets, with their public names. The pipeline job is not one of them."""

    display_name: str = ""
    cron: str = ""
    #: No run is earlier than the start time or later than the end time.
    start_time: datetime | None = None
    end_time: datetime | None = None
    max_run_count: int = 0
    #: Maximum number of runs that start at the same time. The service starts one run at a time.
    max_concurrent_run_count: int = 0
    #: Maximum number of unfinished runs.
    max_concurrent_active_run_count: int = 0
    #: Whether runs beyond the maximum number of unfinished runs wait. Otherwise they are skipped.
    allow_queueing: bool = False

    @property
    def start(self) -> Nanos:
        return nanos(self.start_time)

    @property
    def end(self) -> Nanos:
        return nanos(self.end_time)


class Response(Struct, frozen=True):
    """The result of the last run: "OK", or the reason why it did not start."""

    run: Nanos
    text: str


class Author(Struct, frozen=True):
    """The user or service account with whose rights runs start: the author of the last create, update or
    resume, at the time `since`. `groups`: the user's groups at that time."""

    email: str
    groups: tuple[str, ...]
    since: Nanos


class Schedule(Struct, frozen=True):
    """A schedule in its stored form, without the compiled pipeline."""

    name: ScheduleName
    #: Also the key of the compiled pipeline.
    uid: JobUid
    terms: Terms
    #: The createPipelineJobRequest in public JSON, without the compiled pipeline.
    request_json: str
    author: Author
    created: Nanos
    updated: Nanos
    state: State = State.ACTIVE
    #: All runs up to this time were started or skipped.
    settled: Nanos = 0
    #: The first run after `settled`. None = no further run, or the schedule is not active.
    next_run: Nanos | None = None
    #: Whether all runs that are due start, however late. They were missed in a pause, or wait for other runs.
    is_behind: bool = False
    #: Whether the last resume requested the missed runs.
    catch_up: bool = False
    started_runs: int = 0
    #: The runs that had not finished when the last run started, and the last run.
    unfinished: tuple[JobUid, ...] = ()
    paused: Nanos = 0
    resumed: Nanos = 0
    response: Response | None = None

    @property
    def wakes(self) -> Nanos | None:
        """The time of the next step, or None if the schedule is not active."""
        if self.state is not State.ACTIVE:
            return None
        return self.terms.end if self.next_run is None else self.next_run


def step(schedule: Schedule, now: Nanos, unfinished: int) -> tuple[Schedule, Nanos | None]:
    """Return the next state of a schedule, and the run to start, whose result the caller reports with
    `record_start` or `record_failure`. `unfinished`: the number of unfinished runs.

    Repeat the step until it neither changes the schedule nor starts a run. Then wait until `wakes`, or for
    the end of an unfinished run if that time has passed.
    """
    terms, run = schedule.terms, schedule.next_run
    if schedule.wakes is None or schedule.wakes > now:
        return schedule, None
    if run is None:
        return replace(schedule, state=State.COMPLETED), None
    last = last_run(terms.cron, run - 1, min(now, terms.end or now)) or run
    is_late = last < now - MAX_DELAY
    if not schedule.is_behind and (is_late or last > run):
        return _skip_missed_runs(schedule, last if is_late else last - _MINUTE, now), None
    limit = terms.max_concurrent_active_run_count
    if not limit or unfinished < limit:
        return schedule, run
    if terms.allow_queueing or schedule.is_behind:
        return replace(schedule, is_behind=True), None
    text = f"{_SKIPPED}, because runs of the schedule have not finished: {unfinished}."
    return record_failure(schedule, run, text, now), None


def _skip_missed_runs(schedule: Schedule, until: Nanos, now: Nanos) -> Schedule:
    first = schedule.next_run or until
    missed = takewhile(lambda run: run <= until, runs(schedule.terms.cron, first - 1))
    count = len([*islice(missed, _MAX_COUNTED)])
    number = f"{count}{' or more' * (count == _MAX_COUNTED)} run{'s' * (count > 1)}"
    text = f"{_SKIPPED} {number} since {whole_second(first // 10**9)}Z: the service was not running."
    return record_failure(schedule, until, text, now)


def record_start(
    schedule: Schedule, run: Nanos, job: JobUid, unfinished: tuple[JobUid, ...], now: Nanos
) -> Schedule:
    """Return the schedule after the pipeline job `job` was created. `unfinished`: older unfinished runs."""
    before = schedule.response.text if schedule.response is not None else ""
    # Repeat the report about skipped runs, which a user may not have seen.
    response = Response(run, f"OK. {before}" if before.startswith(_SKIPPED) else "OK")
    started, unfinished = schedule.started_runs + 1, (*unfinished, job)
    changes = {"started_runs": started, "unfinished": unfinished, "response": response}
    return _settle(schedule, run, now, **changes)


def record_failure(schedule: Schedule, run: Nanos, text: str, now: Nanos) -> Schedule:
    """Return the schedule after a run could not start. `text`: the reason."""
    return _settle(schedule, run, now, response=Response(run, text))


def change(schedule: Schedule, now: Nanos) -> Schedule:
    """Return a new or changed schedule with its next run after `now`. Runs that are due are skipped. Raises
    FailedPrecondition if the schedule is completed."""
    _require_changeable(schedule)
    return _settle(schedule, now, now, is_behind=False, updated=now)


def pause(schedule: Schedule, now: Nanos) -> Schedule:
    """Return the paused schedule. Raises FailedPrecondition if it is completed."""
    _require_changeable(schedule)
    if schedule.state is State.PAUSED:
        return schedule
    return replace(schedule, state=State.PAUSED, paused=now, updated=now, next_run=None)


def resume(schedule: Schedule, now: Nanos, *, catch_up: bool) -> Schedule:
    """Return the active schedule. `catch_up`: whether the runs since the pause start now. Raises
    FailedPrecondition unless the schedule is paused."""
    _require_changeable(schedule)
    if schedule.state is State.ACTIVE:
        raise FailedPrecondition(f"{schedule.name} is not paused, so it cannot be resumed.")
    active = replace(schedule, state=State.ACTIVE, resumed=now, updated=now, catch_up=catch_up)
    return _settle(active, schedule.settled if catch_up else now, now, is_behind=catch_up)


def nanos(time: datetime | None) -> Nanos:
    return 0 if time is None else round(time.timestamp() * 10**6) * 1_000


def _require_changeable(schedule: Schedule) -> None:
    if schedule.state is State.COMPLETED:
        text = "is completed and cannot be changed, paused or resumed. Create another schedule."
        raise FailedPrecondition(f"{schedule.name} {text}")


def _settle(schedule: Schedule, until: Nanos, now: Nanos, **changes: Any) -> Schedule:
    """Return the schedule with these changes after all runs up to `until` were started or skipped."""
    schedule = replace(schedule, settled=until, **changes)
    terms = schedule.terms
    run = next_run(terms.cron, max(until, terms.start - 1))
    if run is not None and terms.end and run > terms.end:
        run = None
    has_all_runs = terms.max_run_count and schedule.started_runs >= terms.max_run_count
    if has_all_runs or (run is None and not terms.end):
        return replace(schedule, state=State.COMPLETED, next_run=None, is_behind=False)
    is_behind = schedule.is_behind and run is not None and run <= now
    is_active = schedule.state is State.ACTIVE
    return replace(schedule, next_run=run if is_active else None, is_behind=is_behind)
