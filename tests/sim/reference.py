"""A second reading of SPEC §2 and §2.1, to judge the first by: written from the text alone, sharing no code with `core`.

It is told, one after the other, what happened to a job (`Fact`s), and says how the job must end, with which public
code, and how many restarts and retries there must have been. It knows no instructions, timelines or nodes' room.

Where the text leaves a choice, it reads:
1. What ends because it was asked to leave its node (SIGTERM by us, "node under maintenance") counts as lost, whatever
   the program made of the signal; what ended by itself before the signal reached it counts as its own.
2. `disableRetries` and `restartJobOnWorkerRestart` together: replicas are restarted in place (facts: the first
   switches the second off).
3. With `restartJobOnWorkerRestart` a lost replica costs a job retry, of which there are three.
4. The package of a user that cannot be installed is the user's failure: code 3, no retry.
5. The cap of attempts counts attempts that had room; what is given up at the cap fails with its cause's own code.
6. A cancel that is accepted while the shut-down of a failed job goes on makes it CANCELLED, unless the primary had
   exited by then.
7. A primary that had ended by itself, before a cancel was accepted or a retry decided, says how the job ends, though it
   is heard of later: with 0 it succeeded, with a permanent failure it failed.
8. `disableRetries` does not keep a job from asking for room again while nothing of it ran: that is no retry.
"""

from dataclasses import dataclass, field

MINUTE = 60 * 10**9

USER_CODE, NO_ROOM, INTERNAL, CANCELLED = 3, 8, 13, 1
ATTEMPTS = 10
REPLICA_RESTARTS = 5
JOB_RETRIES = {"crash": 3, "lost": 3, "no room": 3, "service": 2, "preempted": 6}
"""Retries of the whole job by cause: "3 attempts in all" are two retries."""
REDUCER_RESTARTS_A_MINUTE = 20
_CRASH_CODES = (6, 134, 11, 139)
_CRASH_SIGNALS = (6, 11)
_OUTSIDE_SIGNALS = (9, 15)

Member = tuple[int, int]
"""Pool and index; the primary is (0, 0)."""
PRIMARY: Member = (0, 0)


@dataclass(frozen=True, slots=True)
class Ended:
    """One process of a replica ended at `ended` and left a record. `stopped`: it was asked to, before it did.
    `leaving`: because its node was to be left."""

    member: Member
    code: int | None
    signal: int | None
    oom: bool
    ended: int
    stopped: bool
    leaving: bool


@dataclass(frozen=True, slots=True)
class Vanished:
    """A replica is gone without a record; `by_service`: because the service failed it. `leaving`: it had been asked
    to leave its node."""

    member: Member
    by_service: bool
    leaving: bool


@dataclass(frozen=True, slots=True)
class Unprepared:
    """The attempt's programs cannot be started; `by_user`: the user's package is at fault."""

    by_user: bool


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no capacity for the job, or for a part of it that lost its place. `ran`: the attempt had programs."""

    ran: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """A spot job gave its room to on-demand work."""


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
    """How the job ends. `cause`: a word of this module; `member`: whose end it was; `status`: its exit status."""

    state: str
    code: int | None
    cause: str
    member: Member | None = None
    status: int | None = None


@dataclass(slots=True)
class Reference:
    """The job as the text sees it. `giving_up`: the attempt is shut down for another one."""

    members: tuple[Member, ...]
    reducers: frozenset[Member] = frozenset()
    restart_job: bool = False
    no_retries: bool = False
    attempts: int = 0
    giving_up: bool = False
    verdict: Verdict | None = None
    retries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOB_RETRIES, 0))
    restarts: dict[Member, int] = field(default_factory=dict[Member, int])
    incarnations: dict[Member, int] = field(default_factory=dict[Member, int])
    over: set[Member] = field(default_factory=set[Member])
    _reducer_restarts: dict[Member, list[int]] = field(default_factory=dict[Member, list[int]])
    _primary_ended: int | None = None
    _cancel: int | None = None
    _given_up_at: int = 0

    def begins(self) -> None:
        """Another attempt has room."""
        self.attempts += 1
        self.giving_up = False
        self._primary_ended = None
        self.restarts = dict.fromkeys(self.members, 0)
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
        """The table, from its first row to its last."""
        member = fact.member if isinstance(fact, Ended | Vanished) else None
        if isinstance(fact, Ended) and fact.code == 0 and not fact.leaving:
            if member == PRIMARY:
                self.verdict = Verdict("SUCCEEDED", None, "success")
            return None
        if member in self.reducers:
            assert member is not None
            return self._restart_reducer(member, now)
        own = self._own_failure(fact)
        if own is not None:
            if own.cause == "crash":
                return self._retry("crash", own, now)
            self.verdict = own
            return None
        match fact:
            case Ended() | Vanished(by_service=False) | Vanished(leaving=True):
                assert member is not None
                self._lost(member, now)
            case Unprepared(by_user=True):
                self.verdict = Verdict("FAILED", USER_CODE, "package")
            case Unprepared() | Vanished() | Failed():
                self._retry("service", Verdict("FAILED", INTERNAL, "service", member), now)
            case NoRoom():
                failed = Verdict("FAILED", NO_ROOM, "no room")
                self._retry("no room", failed, now, is_retry=fact.ran)
            case Evicted():
                self._retry("preempted", Verdict("FAILED", NO_ROOM, "preempted"), now)
            case Cancelled():
                raise AssertionError("handled before")
        return None

    @staticmethod
    def _own_failure(fact: Fact) -> Verdict | None:
        """The rows that speak of the program's own end."""
        if not isinstance(fact, Ended) or fact.leaving:
            return None
        if fact.oom:
            return Verdict("FAILED", USER_CODE, "oom", fact.member)
        status = fact.code if fact.code is not None else fact.signal
        if fact.code in _CRASH_CODES or fact.signal in _CRASH_SIGNALS:
            return Verdict("FAILED", USER_CODE, "crash", fact.member, status)
        if fact.signal in _OUTSIDE_SIGNALS:
            return None
        return Verdict("FAILED", USER_CODE, "exit", fact.member, status)

    def _restart_reducer(self, member: Member, now: int) -> None:
        recent = [at for at in self._reducer_restarts.get(member, []) if at > now - MINUTE]
        if len(recent) >= REDUCER_RESTARTS_A_MINUTE:
            return  # given up: the workers go on without it
        self._reducer_restarts[member] = [*recent, now]
        self._again(member)

    def _lost(self, member: Member, now: int) -> None:
        failed = Verdict("FAILED", USER_CODE, "lost", member)
        if self.restart_job and not self.no_retries:
            self._retry("lost", failed, now)
        elif self._may_restart(member):
            self.restarts[member] += 1
            self._again(member)
        else:
            self._retry("lost", failed, now)

    def _may_restart(self, member: Member) -> bool:
        whole = self.restart_job and not self.no_retries
        return not whole and self.restarts[member] < REPLICA_RESTARTS

    def _again(self, member: Member) -> None:
        self.incarnations[member] += 1
        self.over.discard(member)
        if member == PRIMARY:
            self._primary_ended = None

    def _retry(self, cause: str, failed: Verdict, now: int, *, is_retry: bool = True) -> None:
        if (self.no_retries and is_retry) or self._spent(cause):
            self._turn(failed)
            return
        self.retries[cause] += 1
        self.giving_up = True
        self._given_up_at = now

    def _spent(self, cause: str) -> bool:
        return self.retries[cause] >= JOB_RETRIES[cause] or self.attempts >= ATTEMPTS

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
        """The end of the attempt is decided; only a primary that had ended by then can still say how the job ends."""
        decided = self._given_up_at if self._cancel is None else self._cancel
        if not isinstance(fact, Ended) or fact.member != PRIMARY or fact.stopped:
            return
        if fact.ended > decided or (self.verdict is not None and self.verdict.state != "CANCELLED"):
            return
        if fact.code == 0:
            self._turn(Verdict("SUCCEEDED", None, "success"))
            return
        own = self._own_failure(fact) or Verdict("FAILED", USER_CODE, "lost", PRIMARY)
        if own.cause == "lost" and self._may_restart(PRIMARY):
            return
        # What is retried is no end: the retry that is under way is for it, too.
        under_way = self.giving_up and self._cancel is None
        retried = own.cause in JOB_RETRIES
        if not retried or (not under_way and (self.no_retries or self._spent(own.cause))):
            self._turn(own)

    def _turn(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.giving_up = False
