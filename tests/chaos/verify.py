"""Compares the service's reports on each job with the diaries and the recorded actions.

Each check yields its errors as texts.
"""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import logs
from tests.chaos.actions import Story, diary_of
from tests.chaos.diary import ObservedReplica, read
from tests.chaos.expected import Course, History, Outcome, course, decisive, expected_outcomes
from tests.chaos.plans import CancelAt, End, JobPlan
from tests.chaos.replica_history import ReplicaHistory, ended_by_full_disk, nanoseconds, replica_history
from tests.chaos.victim import Span, request
from tests.e2e.running import Service

FINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_LATE: Final = 10**9
"""Nanoseconds within which a program exits after its note, if no record has the time."""
_PAGE: Final = 300
"""Entries per page of the Logging API: few, so that there are many pages."""


@dataclass
class Report:
    """The outcome of a job. `counts`: its attempts, and the incarnations, lines and other counts of all its
    replicas. `isolated`: whether its programs had their own process namespace; contains both values if they
    differ.
    """

    name: str
    kind: str
    wrong: list[str]
    state: str = ""
    counts: Counter[str] = field(default_factory=Counter[str])
    isolation_states: frozenset[bool] = frozenset()


@dataclass(frozen=True)
class FinishedJob:
    """All data about a finished job from the service and from its programs."""

    story: Story
    view: Mapping[str, Any]
    timeline: Sequence[Mapping[str, Any]]
    public: Mapping[str, Any]
    observed: Mapping[str, ObservedReplica]
    files: logs.Files
    counts: Counter[str]


def check(
    story: Story, service: Service, directory: Path, judge: Callable[[FinishedJob], Iterable[str]]
) -> Report:
    """Check a finished job completely. `judge`: returns errors in addition to the general ones. The service's
    data of a failed check is stored next to the diary.
    """
    plan = story.plan
    if not story.public:
        return Report(plan.name, plan.kind, ["it was never submitted", *story.faults_found])
    ours = f"/trainshed/v1/jobs/{story.target}"
    view = request(service, "GET", ours)
    if view["state"] not in FINAL:
        waits = str(view.get("waiting", ""))
        wrong = ["it is not over", waits, *story.faults_found]
        return Report(plan.name, plan.kind, wrong, view["state"])
    diary = diary_of(directory)
    lives = [life for pool in plan.replicas.values() for life in pool.lives]
    torn = any(life.end is End.SHIM_KILLED for life in lives)
    job = FinishedJob(
        story,
        view,
        request(service, "GET", f"{ours}/timeline")["entries"],
        request(service, "GET", story.public),
        {replica: read(diary / plan.name / replica) for replica in plan.replicas},
        logs.from_files(directory / "data", view["uid"], torn=torn),
        Counter(attempts=view["attempt"]),
    )
    wrong = [*story.faults_found, *job.files.wrong, *judge(job), *_after_the_end(job)]
    wrong += _check_file_contents(job, service)
    for replica, seen in job.observed.items():
        job.counts["lives"] += len(seen.lives)
        if seen.has_duplicate:
            wrong.append(f"{replica}: a life began while another one lived")
    if wrong:
        evidence = {"view": view, "timeline": job.timeline, "public": job.public}
        kept = diary.parent / "wrong" / f"{plan.name}.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"wrong": wrong, **evidence}, indent=1))
    spoken = [text for texts in job.files.lines.values() for _, text in logs.program_lines(texts)]
    job.counts["lines"] = len(spoken)
    # In a namespace the shim is the first process, and the program one of the next.
    isolated = frozenset(int(text.rpartition(" pid ")[2]) < 10 for text in spoken)
    return Report(plan.name, plan.kind, wrong, view["state"], job.counts, isolated)


def by_plan(
    job: FinishedJob, drains: Sequence[Span], full: Sequence[Span], hangs: Sequence[Span]
) -> Iterator[str]:
    """Check that the job followed its plan, except for drains, and for starts while the disk was `full` or
    the zygote hung.
    """
    plan = job.story.plan
    facts = {
        replica: replica_history(
            replica,
            plan.replicas[replica],
            seen,
            job.timeline,
            job.files.lines.get(replica, ()),
            job.story.kills,
            drains,
            hangs,
        )
        for replica, seen in job.observed.items()
    }
    whole = course(plan, facts[plan.actor].moves(ended_by_full_disk(job.timeline, full)))
    yield from outcome(job, whole)
    for replica, fate in facts.items():
        job.counts["moved"] += len(fate.moved_incarnations)
        # The contents of a killed shim's pipe are lost with it (spec/invariants#durability).
        cut = {
            life.number
            for life in fate.observed.lives
            if not life.end
            and plan.replicas[replica].life(life.number).end in (End.SHIM_KILLED, End.SHIM_HANGS)
        }
        texts = (*_starts(plan, job.view, replica, fate), *lines(job, replica, cut))
        yield from (f"{replica}: {text}" for text in texts)
    if not any(fate.is_worn for replica, fate in facts.items() if replica != plan.actor):
        yield from _attempts(plan, whole, job.view, facts[plan.actor])


def outcome(job: FinishedJob, whole: Course) -> Iterator[str]:
    """Check state and message against spec/lifecycle and spec/failures, and against all APIs."""
    plan, view, public = job.story.plan, job.view, job.public
    cancel = job.story.cancel
    if plan.cancel is not CancelAt.NEVER and cancel is None:
        yield "it was not cancelled"
        return
    right = expected_outcomes(
        plan, whole.outcome, History(cancel, _exit_interval(plan, whole, view, job.observed))
    )
    error = view.get("error", {"code": 0, "message": ""})
    shown = Outcome(view["state"], error["code"], error["message"])
    if not any(_is(shown, wanted) for wanted in right):
        yield (
            f"it ended {shown.state}, code {shown.code}: {shown.message.partition(chr(10))[0]!r}; right is "
            f"{' or '.join(map(str, right))}"
        )
    state = view["state"] if plan.is_ml else f"JOB_STATE_{view['state']}"
    if public["state"] != state:
        yield f"its public state is {public['state']}, not {state}"
    message = public.get("errorMessage", "") if plan.is_ml else public.get("error", {}).get("message", "")
    if message.removeprefix("CANCELED: ") != error["message"]:
        yield f"its public message is {message!r}, not {error['message']!r}"


def _is(shown: Outcome, right: Outcome) -> bool:
    same = (shown.state, shown.code) == (right.state, right.code)
    return same and shown.message.startswith(right.message)


def _exit_interval(
    plan: JobPlan, whole: Course, view: Mapping[str, Any], seen: Mapping[str, ObservedReplica]
) -> tuple[int, int] | None:
    """Return the times between which the deciding program exited, or None if it did not."""
    replica, end = decisive(plan, whole)
    lives = seen[replica].lives
    wanted = sum(whole.lives) if replica == plan.actor else 1
    if len(lives) < wanted or lives[-1].end != end.value:
        return None
    first = lives[-1].ended_at
    for replica_view in view["replicas"]:
        if replica_view["id"] == replica and replica_view["exit"]:
            return first, max(first, nanoseconds(replica_view["exit"]["endTime"]))
    return first, first + _LATE


def _after_the_end(job: FinishedJob) -> Iterator[str]:
    """spec/lifecycle#end: no process of a job runs after its end is published."""
    over = nanoseconds(job.view["endTime"])
    for replica, diary in job.observed.items():
        if diary.is_alive:
            yield f"{replica} lives, and the job is over"
        for life in diary.lives:
            if life.last_sign > over:
                late = (life.last_sign - over) / 1e6
                yield f"{replica}, life {life.number}: a sign {late:.1f} ms after the job's end"


def _starts(plan: JobPlan, view: Mapping[str, Any], replica: str, fate: ReplicaHistory) -> Iterator[str]:
    """Check that no program started twice and none was restarted without a reason
    (spec/failures#lost-replicas).
    """
    starts = [(start.attempt, start.incarnation) for start in fate.starts]
    if twice := [start for start, count in Counter(starts).items() if count > 1]:
        yield f"the timeline tells starts twice: {twice}"
    # A program may be stopped before it opens its diary: in a cancelled job, next to the actor, or by a
    # drain.
    silent = view["attempt"] if replica != plan.actor else view["state"] == "CANCELLED"
    if not 0 <= len(starts) - len(fate.observed.lives) <= silent + fate.asked_to_leave + fate.unmade:
        yield f"{len(fate.observed.lives)} lives, and the timeline tells of {starts}"
    if replica != plan.actor and (needless := fate.needless()):
        yield f"restarted for nothing after the lives {needless} of attempts {fate.attempts}"


def _attempts(plan: JobPlan, whole: Course, view: Mapping[str, Any], fate: ReplicaHistory) -> Iterator[str]:
    """Check restarts and attempts against spec/failures#lost-replicas."""
    counts = fate.counts
    mine = tuple(counts[number] for number in range(1, view["attempt"] + 1))
    if view["state"] == "CANCELLED":
        fits = len(mine) <= len(whole.lives) and all(
            have == want if number < len(mine) - 1 else have <= want
            for number, (have, want) in enumerate(zip(mine, whole.lives, strict=False))
        )
    else:
        fits = mine == whole.lives
    if not fits:
        moved = (
            f", of which {sorted(fate.moved_incarnations)} had to leave a node"
            if fate.moved_incarnations
            else ""
        )
        yield f"{plan.actor} lived {mine} times in its attempts{moved}; right is {whole.lives}"


def lines(job: FinishedJob, replica: str, cut: Container[int]) -> Iterator[str]:
    """spec/logs#order: every line exactly once and in order, for each incarnation. A program records each
    line just after writing it. `cut`: incarnations that may have lost lines.
    """
    parts, wrong = logs.parts(job.files.lines.get(replica, ()))
    yield from wrong
    counts = {part.token: part.lines for part in parts}
    order = [part.token for part in parts]
    lives = job.observed[replica].lives
    if order != [life.token for life in lives if life.token in counts]:
        yield f"lives in the log {order}, and as they were {[life.token for life in lives]}"
    for life in lives:
        count = counts.get(life.token, 0)
        burst = job.story.plan.replicas[replica].life(life.number).burst
        least = 0 if life.number in cut else life.lines
        if not least <= count <= (life.lines if life.end else life.lines + burst):
            end = life.end or "ended"
            yield f"life {life.number} ({end}) wrote {life.lines} lines, and {count} are there"


def _check_file_contents(job: FinishedJob, service: Service) -> Iterator[str]:
    """Check that both APIs return the contents of the files."""
    view, files = job.view, job.files
    ours = logs.from_our_api(service, job.story.target)
    tasks, wrong = logs.from_logging_api(service, view["jobId"], _PAGE)
    yield from wrong
    for replica in view["replicas"]:
        name, exit_ = replica["id"], replica["exit"]
        on_disk = logs.program_lines(files.lines.get(name, ()))
        if (count := len(logs.program_lines(ours.get(name, ())))) != len(on_disk):
            yield f"{name}: {len(on_disk)} lines on disk, {count} in our own API"
        elif logs.program_lines(ours.get(name, ())) != on_disk:
            yield f"{name}: our own API gives other lines than there are on disk"
        texts = [text for _, text in on_disk]
        read_there = [
            text for _, text in logs.program_lines((0, text) for text in tasks.get(replica["task"], ()))
        ]
        if read_there != texts:
            yield f"{name}: {len(texts)} lines on disk, {len(read_there)} in the Logging API, or others"
        counted = files.counts.get((view["attempt"], name), 0)
        if exit_ and exit_["logLines"] != counted:
            yield f"{name}: its record counts {exit_['logLines']} lines, on disk are {counted}"
