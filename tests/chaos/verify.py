"""Holds what the service tells of each job against what the programs and those who acted on them know.

Every check yields what is wrong as texts; nothing wrong, no texts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.chaos import logs
from tests.chaos.deeds import Story
from tests.chaos.diary import LifeSeen, ReplicaSeen, read
from tests.chaos.expected import History, Outcome, course, decisive, expected
from tests.chaos.plans import CancelAt, End, JobPlan
from tests.chaos.victim import Address, request

FINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})

_LATE: Final = 10**9
"""Nanoseconds after a program's note of its end within which it has ended, where no record says when."""
_PAGE: Final = 300
"""Entries per page of the Logging API: small enough that there are many pages."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one job. `lives`, `lines`: of all its replicas."""

    name: str
    kind: str
    state: str = ""
    attempts: int = 0
    lives: int = 0
    lines: int = 0
    wrong: tuple[str, ...] = ()


def check(story: Story, address: Address, data: Path, diary: Path) -> Report:
    """Everything that there is to check of one job that is over."""
    plan = story.plan
    if not story.public:
        return Report(plan.name, plan.kind, wrong=("it was never submitted", *story.trouble))
    ours = f"/trainshed/v1/jobs/{story.target}"
    view = request(address, "GET", ours)
    if view["state"] not in FINAL:
        return Report(plan.name, plan.kind, view["state"], wrong=("it is not over", *story.trouble))
    timeline = request(address, "GET", f"{ours}/timeline")["entries"]
    public = request(address, "GET", story.public)
    seen = {replica: read(diary / plan.name / replica) for replica in plan.replicas}
    files = logs.from_files(data, view["uid"])
    wrong = [*story.trouble, *files.wrong]
    wrong += _outcome(story, view, public, seen)
    wrong += _after_the_end(view, seen)
    wrong += _starts(plan, view, timeline, seen, files)
    for replica, diary_of in seen.items():
        wrong += [f"{replica}: {text}" for text in _lines(plan, replica, diary_of, files)]
    wrong += _readings(story, view, address, files)
    return Report(
        plan.name,
        plan.kind,
        view["state"],
        view["attempt"],
        sum(len(each.lives) for each in seen.values()),
        sum(len(logs.spoken(lines)) for lines in files.lines.values()),
        tuple(wrong),
    )


def _outcome(
    story: Story,
    view: Mapping[str, Any],
    public: Mapping[str, Any],
    seen: Mapping[str, ReplicaSeen],
) -> Iterator[str]:
    """State and message are what SPEC §2 and §2.1 say, and all surfaces say the same."""
    plan = story.plan
    if plan.cancel is not CancelAt.NEVER and story.cancel is None:
        yield "nobody came to cancel it"
        return
    right = expected(plan, History(story.cancel, _ended(plan, view, seen)))
    error = view.get("error", {"code": 0, "message": ""})
    told = Outcome(view["state"], error["code"], error["message"])
    if not any(_is(told, outcome) for outcome in right):
        yield f"it ended {told.state}, code {told.code}: {told.message.partition(chr(10))[0]!r}; right is {' or '.join(map(str, right))}"
    state = view["state"] if plan.is_ml else f"JOB_STATE_{view['state']}"
    if public["state"] != state:
        yield f"its public state is {public['state']}, not {state}"
    message = (
        public.get("errorMessage", "") if plan.is_ml else public.get("error", {}).get("message", "")
    )
    if message != error["message"]:
        yield f"its public message is {message!r}, not {error['message']!r}"


def _is(told: Outcome, right: Outcome) -> bool:
    same = (told.state, told.code) == (right.state, right.code)
    return same and told.message.startswith(right.message)


def _ended(
    plan: JobPlan, view: Mapping[str, Any], seen: Mapping[str, ReplicaSeen]
) -> tuple[int, int] | None:
    """Between which moments the program whose end decides ended by itself; None if it did not come to that."""
    replica, end = decisive(plan)
    lives = seen[replica].lives
    wanted = sum(course(plan).lives) if replica == plan.actor else 1
    if len(lives) < wanted or lives[-1].end != end.value:
        return None
    first = lives[-1].ended_at
    for each in view["replicas"]:
        if each["id"] == replica and each["exit"]:
            return first, max(first, nanoseconds(each["exit"]["endTime"]))
    return first, first + _LATE


def _after_the_end(view: Mapping[str, Any], seen: Mapping[str, ReplicaSeen]) -> Iterator[str]:
    """SPEC §2: nothing of a job lives once its end is published."""
    over = nanoseconds(view["endTime"])
    for replica, diary in seen.items():
        if diary.is_alive:
            yield f"{replica} lives, and the job is over"
        for life in diary.lives:
            if life.last_sign > over:
                late = (life.last_sign - over) / 1e6
                yield f"{replica}, life {life.number}: a sign {late:.1f} ms after the job's end"


def _starts(
    plan: JobPlan,
    view: Mapping[str, Any],
    timeline: list[Mapping[str, Any]],
    seen: Mapping[str, ReplicaSeen],
    files: logs.Files,
) -> Iterator[str]:
    """No program started twice, none beside another, and restarts and attempts as SPEC §2.1 counts them."""
    told = _told_starts(timeline)
    for replica, diary in seen.items():
        if diary.doubled:
            yield f"{replica}: a life began while another one lived"
        starts = told.get(replica, [])
        if twice := [start for start, count in Counter(starts).items() if count > 1]:
            yield f"{replica}: the timeline tells starts twice: {twice}"
        # A program may be stopped before it has come to its diary: in a cancelled job, or beside the actor.
        silent = view["attempt"] if replica != plan.actor else view["state"] == "CANCELLED"
        if not 0 <= len(starts) - len(diary.lives) <= silent:
            yield f"{replica}: {len(diary.lives)} lives, and the timeline tells of {starts}"
    attempts = {replica: _by_attempt(replica, diary, files) for replica, diary in seen.items()}
    whole = course(plan).lives
    mine = [attempts[plan.actor][number] for number in range(1, view["attempt"] + 1)]
    if view["state"] == "CANCELLED":
        fits = len(mine) <= len(whole) and all(
            have == want if number < len(mine) - 1 else have <= want
            for number, (have, want) in enumerate(zip(mine, whole, strict=False))
        )
    else:
        fits = mine == list(whole)
    if not fits:
        yield f"{plan.actor} lived {mine} times in its attempts; right is {list(whole)}"
    for replica, counts in attempts.items():
        if replica != plan.actor and (often := {a: n for a, n in counts.items() if n > 1}):
            yield f"{replica} was restarted for nothing: lives by attempt {often}"


def _told_starts(timeline: list[Mapping[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    """(attempt, incarnation) of each start that the timeline tells, by replica.

    Of one that was lost while no service ran, nobody heard that it had started: its loss tells of it.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for entry in timeline:
        if entry["kind"] in ("replica_started", "replica_lost"):
            details = entry["details"]
            start = (details["attempt"], details["incarnation"])
            starts = found.setdefault(details["replica"], [])
            if entry["kind"] == "replica_started" or start not in starts:
                starts.append(start)
    return found


def _by_attempt(replica: str, diary: ReplicaSeen, files: logs.Files) -> Counter[int]:
    """Lives by attempt. One that was ended before its first line counts for the attempt before it."""
    parts, _ = logs.parts(files.lines.get(replica, ()))
    attempt_of = {part.token: part.attempt for part in parts}
    found: Counter[int] = Counter()
    attempt = 1
    for life in diary.lives:
        attempt = attempt_of.get(life.token, attempt)
        found[attempt] += 1
    return found


def _lines(plan: JobPlan, replica: str, diary: ReplicaSeen, files: logs.Files) -> Iterator[str]:
    """SPEC §5: every line exactly once and in order, life after life."""
    parts, wrong = logs.parts(files.lines.get(replica, ()))
    yield from wrong
    told = {part.token: part.lines for part in parts}
    order = [part.token for part in parts]
    if order != [life.token for life in diary.lives if life.token in told]:
        yield f"lives in the log {order}, and as they were {[life.token for life in diary.lives]}"
    for life in diary.lives:
        lines = told.get(life.token, 0)
        least, most = _bounds(plan, replica, life)
        if not least <= lines <= most:
            yield f"life {life.number} ({life.end or 'ended'}) wrote {life.said} lines, and {lines} are there"


def _bounds(plan: JobPlan, replica: str, life: LifeSeen) -> tuple[int, int]:
    """How many lines there may be. A program notes what it has written just after writing it; what is in the pipe
    of a shim that is killed is lost with it (DESIGN §3.7)."""
    planned = plan.replicas[replica].life(life.number)
    if life.end:
        return life.said, life.said
    return 0 if planned.end is End.SHIM_KILLED else life.said, life.said + planned.burst


def _readings(
    story: Story, view: Mapping[str, Any], address: Address, files: logs.Files
) -> Iterator[str]:
    """Both APIs give what lies on disk."""
    ours = logs.from_our_api(address, story.target)
    tasks, wrong = logs.from_logging_api(address, view["jobId"], _PAGE)
    yield from wrong
    for replica in view["replicas"]:
        name, exit_ = replica["id"], replica["exit"]
        on_disk = logs.spoken(files.lines.get(name, ()))
        if (count := len(logs.spoken(ours.get(name, ())))) != len(on_disk):
            yield f"{name}: {len(on_disk)} lines on disk, {count} in our own API"
        elif logs.spoken(ours.get(name, ())) != on_disk:
            yield f"{name}: our own API gives other lines than there are on disk"
        texts = [text for _, text in on_disk]
        read_there = [
            text for _, text in logs.spoken((0, text) for text in tasks.get(replica["task"], ()))
        ]
        if read_there != texts:
            yield f"{name}: {len(texts)} lines on disk, {len(read_there)} in the Logging API, or others"
        counted = files.counts.get((view["attempt"], name), 0)
        if exit_ and exit_["logLines"] != counted:
            yield f"{name}: its record counts {exit_['logLines']} lines, on disk are {counted}"


def nanoseconds(text: str) -> int:
    """An RFC 3339 moment in UTC, which the API cuts to microseconds: its last nanosecond."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 + 999
