"""A second reading of spec/lifecycle and spec/failures, to judge the first by: written from the text alone,
sharing no code with `core`.

It is told, one after the other, what happened to a job (`Fact`s), and says how the job must end, with which
public code, and how many restarts and retries there must have been. It knows no instructions, timelines or
nodes' room.

Where the text leaves a choice, it reads:
1. What ends because it was asked to leave its node (SIGTERM by us, "node under maintenance") counts as lost,
   whatever the program made of the signal; what ended by itself before the signal reached it counts as its
   own.
2. `disableRetries` and `restartJobOnWorkerRestart` together: replicas are restarted in place (facts: the
   first switches the second off).
3. With `restartJobOnWorkerRestart` a lost replica costs a job retry, of which there are three.
4. The package of a user that cannot be installed is the user's failure: code 3, no retry.
5. The cap of attempts counts attempts that had room; what is given up at the cap fails with its cause's own
   code.
6. A cancel that is accepted while the shut-down of a failed job goes on makes it CANCELLED, unless the
   primary had exited by then.
7. A primary that had ended by itself, before a cancel was accepted or a retry decided, says how the job ends,
   though it is heard of later: with 0 it succeeded, with a permanent failure it failed.
8. `disableRetries` does not keep a job from asking for room again while nothing of it ran: that is no retry.
9. What the stall watchdog ended counts as lost (the docs' table names it there).
10. With `restartJobOnWorkerRestart` a row that gives restarts and no retries gives as many retries of the
    job.
11. What was asked to leave its node and is gone without a record goes by who took it, where the engine knows
    that.
12. What the engine will never start fails the job at once, with a code of its own (9); a service that could
    not start it tries again.
13. What had not begun when it was asked to leave its node goes elsewhere, and is not counted, whoever it is.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.rows import CANCELLED, REDUCER, End, Gives, Rows

ATTEMPTS = 10

Member = tuple[int, int]
"""Pool and index; the primary is (0, 0)."""
PRIMARY: Member = (0, 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """One process of a replica ended at `ended` and left a record. `stopped`: it was asked to, before it did.
    `leaving`: because its node was to be left, or ended it. `stalled`: the watchdog ended it."""

    member: Member
    code: int | None
    signal: int | None
    oom: bool
    ended: int
    stopped: bool
    leaving: bool
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Vanished:
    """A replica is gone without a record; `by_service`: because the service failed it. `leaving`: it had been
    asked to leave its node. `taker`: who of the cluster took it, as docs/failure-table.md names the cause;
    None: nobody knows."""

    member: Member
    by_service: bool
    leaving: bool
    taker: str | None = None
    #: It had not begun, as whoever was to start it says.
    never: bool = False


@dataclass(frozen=True, slots=True)
class Unprepared:
    """The attempt's programs cannot be started, for want of the user's `package` or `data`, of the `service`,
    or since the engine has `rejected` them for good."""

    kind: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no capacity for the job, or for a part of it that lost its place. `ran`: the attempt had
    programs."""

    ran: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """A spot job gave its room to on-demand work, or a hard `budget` is used up. `ran`: the attempt had
    programs."""

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
    """How the job ends. `cause`: a word of `rows`, "success" or "cancelled"; `member`: whose end it was."""

    state: str
    code: int | None
    cause: str
    member: Member | None = None


@dataclass(slots=True)
class Reference:
    """The job as the text sees it. `giving_up`: the attempt is shut down for another one. `retries`: by
    cause. `memory`: what its limits have grown to, in times the first ones."""

    members: tuple[Member, ...]
    reducers: frozenset[Member] = frozenset()
    restart_job: bool = False
    no_retries: bool = False
    rows: Rows = field(default_factory=Rows)
    most_attempts: int = ATTEMPTS
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
    #: ns before which no other attempt may begin.
    not_before: int = 0

    def begins(self) -> None:
        """Another attempt has room."""
        self.attempts += 1
        self.giving_up = False
        self._primary_ended = None
        self.restarts.clear()
        self.incarnations = dict.fromkeys(self.members, 1)
        self.over = set()
        self._reducer_restarts = {}

    def concerns(self, attempt: int, member: Member, incarnation: int) -> bool:
        """Whether a report is news: of the current attempt and incarnation, and the first of its end."""
        current = self.incarnations.get(member) == incarnation
        return attempt == self.attempts and current and member not in self.over

    def learn(self, fact: Fact, now: int) -> None:
        """One more thing happened; reports that `concerns` refuses must not come here."""
        if isinstance(fact, Cancelled):
            return self._cancelled(fact.at)
        if isinstance(fact, Ended | Vanished):
            self.over.add(fact.member)
        if isinstance(fact, Ended) and fact.member == PRIMARY:
            self._primary_ended = fact.ended
        # A job that asks for room is not in the middle of being given up any more.
        if self._cancel is not None or (self.giving_up and not isinstance(fact, NoRoom)):
            return self._late(fact)
        if self.verdict is None:
            self._judge(fact, now)
        return None

    def _judge(self, fact: Fact, now: int) -> None:
        """Success, then reducers, then the rows: what is left of their restarts and retries, and the end."""
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
        elif self._waits(fact) or self._may_retry(
            cause, is_retry=not isinstance(fact, NoRoom) or fact.ran
        ):
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
            return  # given up: the workers go on without it
        self._reducer_restarts[member] = [*recent, now]
        self._again(member)

    def _may_restart(self, member: Member, cause: str) -> bool:
        return not self._whole and self.restarts[member, cause] < self.rows.gives[cause].restarts

    def _may_retry(self, cause: str, *, is_retry: bool = True) -> bool:
        spent = self.retries[cause] >= self._retries(self.rows.gives[cause])
        counted = self.attempts - self.retries["budget"]
        return not (spent or (self.no_retries and is_retry) or counted >= self.most_attempts)

    def _waits(self, fact: Fact) -> bool:
        """Whether its budget is all that it wants: nothing is lost, and nothing limits how often."""
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

    def _cancelled(self, at: int) -> None:
        if self._cancel is not None:
            return
        if self.verdict is not None:
            primary_was_over = self._primary_ended is not None and self._primary_ended <= at
            if self.verdict.state == "SUCCEEDED" or primary_was_over:
                return
        self._cancel = at
        self.verdict = Verdict("CANCELLED", CANCELLED, "cancelled")

    def _late(self, fact: Fact) -> None:
        """The end of the attempt is decided; only a primary that had ended by then can still say how the job
        ends."""
        decided = self._given_up_at if self._cancel is None else self._cancel
        if not isinstance(fact, Ended) or fact.member != PRIMARY or fact.stopped:
            return
        if fact.ended > decided or (self.verdict is not None and self.verdict.state != "CANCELLED"):
            return
        if fact.code == 0:
            self._turn(Verdict("SUCCEEDED", None, "success"))
            return
        cause = self.rows.cause_of(_end(fact))
        gives = self.rows.gives[cause]
        if self._may_restart(PRIMARY, cause):
            return
        # What is retried is no end: the retry that is under way is for it, too.
        under_way = self.giving_up and self._cancel is None
        if not self._retries(gives) or (not under_way and not self._may_retry(cause)):
            self._turn(Verdict("FAILED", gives.code, cause, PRIMARY))

    def _turn(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.giving_up = False


def _end(fact: Fact) -> End:
    """What is known of it, in the words that rows go by."""
    match fact:
        case Ended():
            if fact.leaving:
                kind = "left"
            elif fact.oom:
                kind = "out_of_memory"
            elif fact.stalled:
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
