"""What a rule of the failure table is, and how a verdict is found. The rows themselves are in `table`."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.failure.evidence import Cause, Evidence
from trainshed.core.failure.messages import Message, public_message
from trainshed.core.job.exits import JobError

Counters = tuple[tuple[str, int], ...]
"""How often something was done, by the name of the failure rule because of which it was done."""


class Action(enum.StrEnum):
    """What a row does once its restarts and retries are used up. SUCCEED, FAIL, CANCEL: to the job. DONE: the
    replica is over, and the job goes on without it."""

    SUCCEED = "succeed"
    DONE = "done"
    FAIL = "fail"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Match:
    """When a row applies: all that is given must hold. Empty sets and None: any."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """One row, applied in this order: restart the replica while `restarts` are left, then retry the job while
    `retries` are left, then `action`.

    `restarts`: per replica and attempt; with a `window` (ns), how many within it. `spacing`: ns from the
    start of a replica to its first, second, … restart at least, so that one that dies young waits; the last
    one repeats. `retries`: of the job, over its whole life. `back_off`: ns to wait before the first, second,
    … retry, the last one repeats. `gives_room`: the job gives its room back and waits for new.
    `memory_growth`: factor by which each retry raises the memory limits, up to `memory_cap` times the first
    ones. `unstoppable`: disableRetries does not forbid its retries while nothing of the attempt ran. `code`,
    `message`: of the public error, for FAIL and CANCEL. `text`: an operator's own words in place of
    `message`.
    """

    name: str
    match: Match
    action: Action
    code: int = 0
    message: Message = Message.NONE
    restarts: int = 0
    window: int = 0
    spacing: tuple[int, ...] = ()
    retries: int = 0
    back_off: tuple[int, ...] = ()
    gives_room: bool = False
    memory_growth: float = 1.0
    memory_cap: float = 1.0
    unstoppable: bool = False
    text: str = ""


class Effect(enum.StrEnum):
    """What a verdict does."""

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
    Action.CANCEL: Effect.JOB_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent before, and what may be spent. Times in ns.

    `restarts`: of the replica in this attempt, by rule; `recent`: when the last ones were. `retries`: of the
    job, by rule. `attempt`, `max_attempts`: where the job stands and how far it may go. `may_retry`: not
    disableRetries. `whole_job`: restartJobOnWorkerRestart. `nothing_ran`: no program of the attempt can have
    been started. `lived`: since the start of the replica, 0 if it never started.
    """

    now: int
    restarts: Counters = ()
    recent: tuple[int, ...] = ()
    retries: Counters = ()
    attempt: int = 1
    max_attempts: int = 10
    may_retry: bool = True
    whole_job: bool = False
    nothing_ran: bool = False
    lived: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rule that matched and what it means now. `count` of `budget`: which restart or retry this one is.

    `spent`: what the rule had to give and is used up, in words, "" if nothing. `back_off`: ns before the
    restart or the next attempt. `error`: the job's public error, if the job ends with one.
    """

    rule: Rule
    effect: Effect
    count: int = 0
    budget: int = 0
    back_off: int = 0
    spent: str = ""
    error: JobError | None = None


def judge(evidence: Evidence, spent: Spent, rules: Sequence[Rule]) -> Verdict:
    """The verdict of the first rule that matches. Raises AssertionError if none does: a table ends in rows
    that do."""
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
            return Verdict(rule, Effect.REPLICA_RESTARTS, restarts + 1, rule.restarts, pause)
        used.append(f"{rule.restarts} of {rule.restarts} restarts used")
    if budget := retry_budget(rule, spent):
        if not spent.may_retry and not (rule.unstoppable and spent.nothing_ran):
            used.append("the job forbids retries")
        elif retries >= budget:
            used.append(f"{retries} of {budget} retries used")
        elif spent.attempt >= spent.max_attempts:
            used.append(f"{spent.attempt} of {spent.max_attempts} attempts used")
        else:
            pause = _nth(rule.back_off, retries)
            return Verdict(rule, Effect.JOB_RETRIES, retries + 1, budget, pause)
    error = (
        public_message(rule.code, rule.message, evidence, rule.text)
        if rule.action in (Action.FAIL, Action.CANCEL)
        else None
    )
    return Verdict(rule, _EFFECTS[rule.action], spent=", ".join(used), error=error)


def _nth(pauses: tuple[int, ...], before: int) -> int:
    """The pause after so many; the last one repeats, and without any there is none."""
    return pauses[min(before, len(pauses) - 1)] if pauses else 0


def retry_budget(rule: Rule, spent: Spent) -> int:
    """How many retries of the job the row has in all; its restarts where a restart is one of the whole
    job."""
    return rule.retries or (rule.restarts if _whole_job(rule, spent) else 0)


def _whole_job(rule: Rule, spent: Spent) -> bool:
    return spent.whole_job and not rule.window  # a reducer's restart is nobody else's business


def count(counters: Counters, name: str) -> int:
    """How often, by a rule's name."""
    return dict(counters).get(name, 0)


def counted(counters: Counters, name: str) -> Counters:
    """The same counters after one more."""
    return tuple({**dict(counters), name: count(counters, name) + 1}.items())
