"""Defines the rows of the failure table, and applies them to find a verdict. `table.toml` contains the
rows."""

import enum
from collections.abc import Sequence

from msgspec import Struct

from trainshed.core.failure.evidence import Cause, Evidence
from trainshed.core.failure.messages import Message, public_message
from trainshed.core.job import JobError

Counters = tuple[tuple[str, int], ...]
"""How often each failure rule has caused an action, such as a restart, by the name of the rule."""


class Action(enum.StrEnum):
    """The action of a failure rule when its restarts and retries are used up."""

    #: The job succeeds.
    SUCCEED = "succeed"
    #: The replica has ended, and the job continues without it.
    DONE = "done"
    #: The job fails.
    FAIL = "fail"
    #: The job is retried without a limit, and its attempts are not counted. A job that forbids retries fails.
    WAIT = "wait"
    #: The job is cancelled.
    CANCEL = "cancel"


class Match(Struct, frozen=True):
    """The conditions of a failure rule. All fields that are set must match. An empty set and None match every
    value."""

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

    Its steps apply in this order: restart the replica while `restarts` remain, then retry the job while
    `retries` remain, then carry out `action`.
    """

    name: str
    match: Match
    action: Action
    #: Code of the public error. Not used by SUCCEED and DONE.
    code: int = 0
    #: Message of the public error. Not used by SUCCEED and DONE.
    message: Message = Message.NONE
    #: Maximum number of restarts of one replica in one attempt, or within `window` if set.
    restarts: int = 0
    #: The period in nanoseconds in which `restarts` are counted. None counts them for the whole attempt.
    window: int | None = None
    #: Minimum nanoseconds from the start of a replica to its first, second, … restart. The last value
    #: repeats. After an earlier failure, the restart waits until this time has passed.
    spacing: tuple[int, ...] = ()
    #: Maximum number of retries of the job in its whole life.
    retries: int = 0
    #: Nanoseconds before the first, second, … retry. The last value repeats.
    back_off: tuple[int, ...] = ()
    #: Whether the job releases its capacity and waits for new capacity before a retry.
    gives_room: bool = False
    #: Factor by which each retry raises the memory limits.
    memory_growth: float = 1.0
    #: Maximum memory limit after all retries, as a multiple of the original limit. 1.0 = never raise it.
    memory_cap: float = 1.0
    #: Whether the rule may retry a job with disableRetries, if no program of the attempt has run.
    unstoppable: bool = False
    #: An operator's text, which replaces the text of `message`.
    text: str | None = None


class Effect(enum.StrEnum):
    """The consequence of a verdict for the replica or the job."""

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
    """The used restarts and retries, and their limits. Times are in nanoseconds."""

    now: int
    #: Number of restarts of the replica in this attempt, by rule.
    restarts: Counters = ()
    #: Times of the replica's recent restarts, for rules with a window.
    recent: tuple[int, ...] = ()
    #: Number of retries of the job, by rule.
    retries: Counters = ()
    #: Number of the job's attempts that count towards the maximum.
    attempt: int = 1
    #: Maximum number of attempts of the job.
    max_attempts: int = 10
    #: Whether the job permits retries (it does not set disableRetries).
    may_retry: bool = True
    #: Whether the job sets restartJobOnWorkerRestart.
    whole_job: bool = False
    #: Whether no program of the attempt can have started.
    nothing_ran: bool = False
    #: Nanoseconds since the start of the replica, or 0 if it never started.
    uptime: int = 0


class Verdict(Struct, frozen=True):
    """The matching rule and its consequence for one end."""

    rule: Rule
    effect: Effect
    #: Number of this restart or retry, or None for other consequences.
    count: int | None = None
    #: Maximum number of these restarts or retries, or None without a limit.
    budget: int | None = None
    #: Nanoseconds before the restart or the next attempt.
    back_off: int = 0
    #: A text with the rule's limits that are used up, or None.
    exhausted_limits: str | None = None
    #: The public error of the job. None if the job continues or ends without an error.
    error: JobError | None = None


def judge(evidence: Evidence, spent: Spent, rules: Sequence[Rule]) -> Verdict:
    """Return the verdict of the first rule that matches. Raise AssertionError if no rule matches. The last
    rows of a table match every end."""
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
            pause = max(0, _nth(rule.spacing, restarts) - spent.uptime)
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
                rule=rule, effect=Effect.JOB_RETRIES, count=retries + 1, budget=budget, back_off=pause
            )
    error = (
        public_message(rule.code, rule.message, evidence, rule.text)
        if rule.action not in (Action.SUCCEED, Action.DONE)
        else None
    )
    return Verdict(rule, _EFFECTS[rule.action], exhausted_limits=", ".join(used) or None, error=error)


def _nth(pauses: tuple[int, ...], before: int) -> int:
    """Return the next pause after `before` earlier pauses. The last pause repeats. Without pauses, return
    0."""
    return pauses[min(before, len(pauses) - 1)] if pauses else 0


def retry_budget(rule: Rule, spent: Spent) -> int:
    """Return the total number of job retries that the rule allows: its `retries`, or its restarts if a
    restart affects the whole job."""
    return rule.retries or (rule.restarts if _whole_job(rule, spent) else 0)


def _whole_job(rule: Rule, spent: Spent) -> bool:
    return spent.whole_job and not rule.window  # Reducers are always restarted one by one.


def count(counters: Counters, name: str) -> int:
    """Return the number of actions that a rule has caused."""
    return dict(counters).get(name, 0)


def increment(counters: Counters, name: str) -> Counters:
    """Return the counters with the count of a rule increased by one."""
    return tuple({**dict(counters), name: count(counters, name) + 1}.items())
