"""A rule of the failure table, and how a verdict is found. The rows themselves are in `table.toml`."""

import enum
from collections.abc import Sequence

from msgspec import Struct

from trainshed.core.failure.evidence import Cause, Evidence
from trainshed.core.failure.messages import Message, public_message
from trainshed.core.job import JobError

Counters = tuple[tuple[str, int], ...]
"""How often something was done, by the name of the failure rule that demanded it."""


class Action(enum.StrEnum):
    """The action of a row after its restarts and retries are used up."""

    #: The job succeeds.
    SUCCEED = "succeed"
    #: The replica has ended, and the job continues without it.
    DONE = "done"
    #: The job fails.
    FAIL = "fail"
    #: The job is retried without a limit, and not one attempt is counted; if it forbids retries it fails.
    WAIT = "wait"
    #: The job is cancelled.
    CANCEL = "cancel"


class Match(Struct, frozen=True):
    """When a row applies: every field that is given must match. An empty set and None match anything."""

    causes: frozenset[Cause]
    exit_codes: frozenset[int] = frozenset()
    signals: frozenset[int] = frozenset()
    primary: bool | None = None
    reducer: bool | None = None

    def holds(self, evidence: Evidence) -> bool:
        if evidence.cause not in self.causes:
            return False
        codes, signals = self.exit_codes, self.signals
        if evidence.cause is Cause.EXITED and codes and evidence.exit_code not in codes:
            return False
        if evidence.cause is Cause.SIGNALLED and signals and evidence.signal not in signals:
            return False
        is_primary = evidence.replica is not None and evidence.replica.is_primary
        return self.primary in (None, is_primary) and self.reducer in (None, evidence.is_reducer)


class Rule(Struct, frozen=True):
    """One row of the failure table.

    Applied in this order: restart the replica while `restarts` are left, then retry the job while `retries`
    are left, then `action`.
    """

    name: str
    match: Match
    action: Action
    #: Code of the public error, unless for SUCCEED and DONE.
    code: int = 0
    #: Message of the public error, likewise.
    message: Message = Message.NONE
    #: Restarts of one replica in one attempt; with a `window`, within that.
    restarts: int = 0
    #: Nanoseconds in which `restarts` are counted; None = the whole attempt.
    window: int | None = None
    #: Minimum nanoseconds from the start of a replica to its first, second, … restart, which
    #: delays restarts of early failures. The last value repeats.
    spacing: tuple[int, ...] = ()
    #: Retries of the job, over its whole life.
    retries: int = 0
    #: Nanoseconds to wait before the first, second, … retry; the last one repeats.
    back_off: tuple[int, ...] = ()
    #: The job gives its capacity back and waits for new.
    gives_room: bool = False
    #: Factor by which each retry raises the memory limits.
    memory_growth: float = 1.0
    #: Largest product of these factors.
    memory_cap: float = 1.0
    #: disableRetries does not forbid its retries while nothing of the attempt ran.
    unstoppable: bool = False
    #: An operator's own words in place of `message`.
    text: str | None = None


class Effect(enum.StrEnum):
    """The consequence of a verdict."""

    JOB_SUCCEEDS = "job_succeeds"
    REPLICA_DONE = "replica_done"
    REPLICA_RESTARTS = "replica_restarts"
    JOB_RETRIES = "job_retries"
    JOB_FAILS = "job_fails"
    JOB_CANCELLED = "job_cancelled"


_EFFECTS = {
    Action.SUCCEED: Effect.JOB_SUCCEEDS,
    Action.DONE: Effect.REPLICA_DONE,
    Action.FAIL: Effect.JOB_FAILS,
    Action.WAIT: Effect.JOB_FAILS,
    Action.CANCEL: Effect.JOB_CANCELLED,
}


class Spent(Struct, frozen=True):
    """Restarts and retries used so far, and their limits. Times in nanoseconds."""

    now: int
    #: Restarts of the replica in this attempt, by rule.
    restarts: Counters = ()
    #: When the last of these were.
    recent: tuple[int, ...] = ()
    #: Retries of the job, by rule.
    retries: Counters = ()
    #: How many attempts the job had that count.
    attempt: int = 1
    #: The number of the last attempt that the job may have.
    max_attempts: int = 10
    #: The job does not set disableRetries.
    may_retry: bool = True
    #: The job sets restartJobOnWorkerRestart.
    whole_job: bool = False
    #: No program of the attempt can have been started.
    nothing_ran: bool = False
    #: Time since the start of the replica; 0 = it never started.
    lived: int = 0


class Verdict(Struct, frozen=True):
    """The rule that matched and what it means now."""

    rule: Rule
    effect: Effect
    #: Which restart or retry this one is; None = it is neither.
    count: int | None = None
    #: How many there may be of these; None = there is no limit.
    budget: int | None = None
    #: Nanoseconds before the restart or the next attempt.
    back_off: int = 0
    #: The limit of the rule that is used up, in words; None = none is.
    spent: str | None = None
    #: The job's public error; None = the job does not end, or ends without one.
    error: JobError | None = None


def judge(evidence: Evidence, spent: Spent, rules: Sequence[Rule]) -> Verdict:
    """Return the verdict of the first rule that matches. Raise AssertionError if none does; the last rows of
    a table prevent that."""
    for rule in rules:
        if rule.match.holds(evidence):
            return _apply(rule, evidence, spent)
    raise AssertionError(f"no rule of the failure table matches {evidence}")


def _apply(rule: Rule, evidence: Evidence, spent: Spent) -> Verdict:
    restarts, retries = count(spent.restarts, rule.name), count(spent.retries, rule.name)
    if rule.window:
        restarts = sum(at > spent.now - rule.window for at in spent.recent)
    used: list[str] = []
    if rule.restarts and evidence.replica is not None and not _whole_job(rule, spent):
        if restarts < rule.restarts:
            pause = max(0, _nth(rule.spacing, restarts) - spent.lived)
            return Verdict(
                rule=rule,
                effect=Effect.REPLICA_RESTARTS,
                count=restarts + 1,
                budget=rule.restarts,
                back_off=pause,
            )
        used.append(f"{rule.restarts} of {rule.restarts} restarts used")
    is_forbidden = not spent.may_retry and not (rule.unstoppable and spent.nothing_ran)
    if rule.action is Action.WAIT and not is_forbidden:
        return Verdict(rule, Effect.JOB_RETRIES, retries + 1)
    if (budget := retry_budget(rule, spent)) or rule.action is Action.WAIT:
        if is_forbidden:
            used.append("the job forbids retries")
        elif retries >= budget:
            used.append(f"{retries} of {budget} retries used")
        elif spent.attempt >= spent.max_attempts:
            used.append(f"{spent.attempt} of {spent.max_attempts} attempts used")
        else:
            pause = _nth(rule.back_off, retries)
            return Verdict(
                rule=rule,
                effect=Effect.JOB_RETRIES,
                count=retries + 1,
                budget=budget,
                back_off=pause,
            )
    error = (
        public_message(rule.code, rule.message, evidence, rule.text)
        if rule.action not in (Action.SUCCEED, Action.DONE)
        else None
    )
    return Verdict(rule, _EFFECTS[rule.action], spent=", ".join(used) or None, error=error)


def _nth(pauses: tuple[int, ...], before: int) -> int:
    """Return the pause after `before` earlier ones. The last pause repeats; without any there is none."""
    return pauses[min(before, len(pauses) - 1)] if pauses else 0


def retry_budget(rule: Rule, spent: Spent) -> int:
    """Return how many retries of the job the row allows in all: `retries`, or else its restarts, where these
    are restarts of the whole job."""
    return rule.retries or (rule.restarts if _whole_job(rule, spent) else 0)


def _whole_job(rule: Rule, spent: Spent) -> bool:
    return spent.whole_job and not rule.window  # reducers are restarted one by one


def count(counters: Counters, name: str) -> int:
    """Return the count of a rule."""
    return dict(counters).get(name, 0)


def counted(counters: Counters, name: str) -> Counters:
    """Return the counters with one more for a rule."""
    return tuple({**dict(counters), name: count(counters, name) + 1}.items())
