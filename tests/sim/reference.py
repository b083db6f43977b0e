"""An independent implementation of spec/lifecycle and spec/failures, written only from their text, without
code of `core`.

It receives the events of a job (`Fact`s) in order. It returns the outcome, the public code, and the numbers
of restarts and retries. It does not model instructions, timelines or capacity.

Where the text is ambiguous, it reads:
1. A replica that ends because of an eviction (SIGTERM by the service, "node under maintenance") counts as
   lost, whatever the program's reaction to the signal. An exit before the signal counts as the program's
   own.
2. `disableRetries` and `restartJobOnWorkerRestart` together: replicas are restarted in place (facts: the
   first switches the second off).
3. With `restartJobOnWorkerRestart` a lost replica costs a job retry. There are three retries.
4. A user's package that cannot be installed is the user's failure: code 3, no retry.
5. The limit of attempts counts attempts with capacity. A failure at the limit has the code of its cause.
6. A cancel accepted during the shut-down of a failed job makes it CANCELLED, unless the primary had exited
   before.
7. A primary that exited before a cancel was accepted or a retry decided determines the outcome, even if its
   exit is reported later: with 0 the job succeeds, with a permanent failure it fails.
8. `disableRetries` does not prevent requests for capacity while nothing of the job has run: they are no
   retries.
9. A replica ended by the stall watchdog counts as lost (as in the table of the docs).
10. With `restartJobOnWorkerRestart` a row with restarts and no retries has as many retries of the job.
11. An evicted replica that disappears without a record has the cause that the cluster reports, if the engine
    provides it.
12. A rejection by the engine fails the job immediately, with code 9. A service that could not start the job
    retries it.
13. A replica evicted before its start moves to another node. It does not count, for any role.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.reference_rows import CANCELLED, REDUCER, End, Gives, Rows

ATTEMPTS = 10

Member = tuple[int, int]
"""Pool and index; the primary is (0, 0)."""
PRIMARY: Member = (0, 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """A replica's process ended at `ended` with a record. `stopped`: after a stop request. `leaving`: because
    its node was drained, or ended it. `stalled`: the watchdog ended it.
    """

    member: Member
    code: int | None
    signal: int | None
    oom: bool
    end: int
    is_stopped: bool
    leaving: bool
    is_stalled: bool = False


@dataclass(frozen=True, slots=True)
class Vanished:
    """A replica disappeared without a record. `by_service`: because the service failed it. `leaving`: after
    an eviction. `taker`: the cause reported by the cluster, as in docs/failure-table.md; None: unknown.
    """

    member: Member
    by_service: bool
    leaving: bool
    taker: str | None = None
    #: It had not started, as its starter reports.
    never: bool = False


@dataclass(frozen=True, slots=True)
class Unprepared:
    """The attempt's programs cannot be started, because of the user's `package` or `data`, because of the
    `service`, or because the engine has permanently `rejected` them.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No capacity exists for the job, or for a replica that lost its node. `ran`: the attempt
    had programs.
    """

    ran: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """A spot job was preempted by on-demand work, or a hard `budget` is exhausted. `ran`: the attempt had
    programs.
    """

    budget: bool = False
    ran: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """The service itself failed the whole attempt."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel, by a user or a time limit, was accepted at `at`."""

    at: int


Fact = Ended | Vanished | Unprepared | NoRoom | Evicted | Failed | Cancelled


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job's outcome. `cause`: a word of `rows`, "success" or "cancelled". `member`: the
    deciding replica.
    """

    state: str
    code: int | None
    cause: str
    member: Member | None = None


@dataclass(slots=True)
class Reference:
    """The job as the specification describes it. `giving_up`: the attempt is being shut down for a retry.
    `retries`: by cause. `memory`: current memory limits as a multiple of the first ones.
    """

    members: tuple[Member, ...]
    reducers: frozenset[Member] = frozenset()
    restart_job: bool = False
    no_retries: bool = False
    rows: Rows = field(default_factory=Rows)
    max_attempts: int = ATTEMPTS
    attempts: int = 0
    giving_up: bool = False
    verdict: Verdict | None = None
    memory: float = 1.0
    retries: Counter[str] = field(default_factory=Counter[str])
    restarts: Counter[tuple[Member, str]] = field(default_factory=Counter[tuple[Member, str]])
    incarnations: dict[Member, int] = field(default_factory=dict[Member, int])
    over: set[Member] = field(default_factory=set[Member])
    _reducer_restarts: dict[Member, list[int]] = field(default_factory=dict[Member, list[int]])
    _primary_ended: int | None = None
    _cancel: int | None = None
    _given_up_at: int = 0
    #: ns before which no other attempt may start.
    not_before: int = 0

    def begins(self) -> None:
        """Record that another attempt has capacity."""
        self.attempts += 1
        self.giving_up = False
        self._primary_ended = None
        self.restarts.clear()
        self.incarnations = dict.fromkeys(self.members, 1)
        self.over = set()
        self._reducer_restarts = {}

    def concerns(self, attempt: int, member: Member, incarnation: int) -> bool:
        """Return whether a report is new: of the current attempt and incarnation, and the first report of its
        end."""
        current = self.incarnations.get(member) == incarnation
        return attempt == self.attempts and current and member not in self.over

    def learn(self, fact: Fact, now: int) -> None:
        """Apply an event. Do not pass reports that `concerns` rejects."""
        if isinstance(fact, Cancelled):
            return self._handle_cancel(fact.at)
        if isinstance(fact, Ended | Vanished):
            self.over.add(fact.member)
        if isinstance(fact, Ended) and fact.member == PRIMARY:
            self._primary_ended = fact.end
        # A job that requests capacity is no longer being shut down.
        if self._cancel is not None or (self.giving_up and not isinstance(fact, NoRoom)):
            return self._late(fact)
        if self.verdict is None:
            self._judge(fact, now)
        return None

    def _judge(self, fact: Fact, now: int) -> None:
        """Apply success, then reducers, then the rows: remaining restarts and retries, and the outcome."""
        member = fact.member if isinstance(fact, Ended | Vanished) else None
        if isinstance(fact, Ended) and fact.code == 0 and not fact.leaving:
            if member == PRIMARY:
                self.verdict = Verdict("SUCCEEDED", None, "success")
            return
        if isinstance(fact, Vanished) and fact.leaving and fact.never:
            self._again(fact.member)
            return
        if member in self.reducers:
            self._restart_reducer(member, now)
            return
        cause = self.rows.cause_of(_end(fact))
        gives = self.rows.gives[cause]
        if member is not None and self._may_restart(member, cause):
            self.restarts[member, cause] += 1
            self._again(member)
        elif self._waits(fact) or self._may_retry(cause, is_retry=not isinstance(fact, NoRoom) or fact.ran):
            self.not_before = now + gives.pause(self.retries[cause])
            self.retries[cause] += 1
            self.memory = max(self.memory, min(self.memory * gives.growth, gives.cap))
            self.giving_up = True
            self._given_up_at = now
        elif not gives.goes_on:
            self._turn(Verdict("FAILED", gives.code, cause, member))

    def _restart_reducer(self, member: Member, now: int) -> None:
        gives = self.rows.gives[REDUCER]
        recent = [at for at in self._reducer_restarts.get(member, []) if at > now - gives.window]
        if len(recent) >= gives.restarts:
            return  # abandoned: the workers continue without it
        self._reducer_restarts[member] = [*recent, now]
        self._again(member)

    def _may_restart(self, member: Member, cause: str) -> bool:
        return not self._whole and self.restarts[member, cause] < self.rows.gives[cause].restarts

    def _may_retry(self, cause: str, *, is_retry: bool = True) -> bool:
        spent = self.retries[cause] >= self._retries(self.rows.gives[cause])
        counted = self.attempts - self.retries["budget"]
        return not (spent or (self.no_retries and is_retry) or counted >= self.max_attempts)

    def _waits(self, fact: Fact) -> bool:
        """Return whether only the rate of restarts is limited, so that their number is unlimited."""
        if not isinstance(fact, Evicted) or not fact.budget:
            return False
        return not (self.no_retries and fact.ran)

    def _retries(self, gives: Gives) -> int:
        return gives.retries or (gives.restarts if self._whole else 0)

    @property
    def _whole(self) -> bool:
        return self.restart_job and not self.no_retries

    def _again(self, member: Member) -> None:
        self.incarnations[member] += 1
        self.over.discard(member)
        if member == PRIMARY:
            self._primary_ended = None

    def _handle_cancel(self, at: int) -> None:
        if self._cancel is not None:
            return
        if self.verdict is not None:
            primary_was_over = self._primary_ended is not None and self._primary_ended <= at
            if self.verdict.state == "SUCCEEDED" or primary_was_over:
                return
        self._cancel = at
        self.verdict = Verdict("CANCELLED", CANCELLED, "cancelled")

    def _late(self, fact: Fact) -> None:
        """The attempt's end is decided. Only a primary that had exited before can still decide
        the outcome.
        """
        decided = self._given_up_at if self._cancel is None else self._cancel
        if not isinstance(fact, Ended) or fact.member != PRIMARY or fact.is_stopped:
            return
        if fact.end > decided or (self.verdict is not None and self.verdict.state != "CANCELLED"):
            return
        if fact.code == 0:
            self._turn(Verdict("SUCCEEDED", None, "success"))
            return
        cause = self.rows.cause_of(_end(fact))
        gives = self.rows.gives[cause]
        if self._may_restart(PRIMARY, cause):
            return
        # A retried failure is not final: the active retry also covers it.
        under_way = self.giving_up and self._cancel is None
        if not self._retries(gives) or (not under_way and not self._may_retry(cause)):
            self._turn(Verdict("FAILED", gives.code, cause, PRIMARY))

    def _turn(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.giving_up = False


def _end(fact: Fact) -> End:
    """Describe the end in the terms of the rows."""
    match fact:
        case Ended():
            if fact.leaving:
                kind = "left"
            elif fact.oom:
                kind = "out_of_memory"
            elif fact.is_stalled:
                kind = "stalled"
            else:
                kind = "exited" if fact.signal is None else "signalled"
            return End(kind, fact.code, fact.signal, fact.member == PRIMARY)
        case Vanished():
            kind = "left" if fact.leaving else "service" if fact.by_service else "lost"
            return End(fact.taker or kind, primary=fact.member == PRIMARY)
        case Unprepared():
            return End(fact.kind)
        case NoRoom():
            return End("stock_out")
        case Evicted():
            return End("budget" if fact.budget else "preempted")
        case Failed():
            return End("service")
        case Cancelled():
            raise AssertionError("it passes no row")
