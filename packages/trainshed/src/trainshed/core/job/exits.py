"""How a replica's process ended, and the public error of a job that may follow."""

from msgspec import Struct

from trainshed.core.units import Nanos


class ExitRecord(Struct, frozen=True, kw_only=True):
    """How a replica's main process ended, as its shim saw it (spec/invariants#shims, "attempt record").

    Exactly one of `exit_code` and `signal` is set.
    """

    exit_code: int | None
    signal: int | None
    #: The replica's memory limit was hit, and the main process died of it.
    oom: bool
    #: Nanoseconds since the epoch.
    started: Nanos
    #: Nanoseconds since the epoch.
    ended: Nanos
    #: Lines written to the log in all, so that readers know the log is whole.
    log_lines: int = 0
    #: The last lines of the log, at most 2 kB, for the public error message.
    tail: str = ""
    #: How many other processes of the replica were killed at the memory limit.
    child_oom: int = 0
    #: It had been asked to stop before it ended.
    stopped: bool = False
    #: The stall watchdog ended it.
    stalled: bool = False
    #: It was ended because its files exceeded the replica's disk limit.
    out_of_disk: bool = False


class JobError(Struct, frozen=True):
    """The public error of a job: a google.rpc code and the public message (spec/failures#messages), with
    typed facts beside it."""

    #: A google.rpc code.
    code: int
    #: The public message.
    message: str
    #: A value of `core.failure.evidence.Cause`.
    cause: str = ""
    #: The replica whose end it was; "" = the whole attempt's.
    replica: str = ""
    #: The published exit status; None if there is none.
    status: int | None = None
    #: The last lines of that replica's log.
    tail: str = ""
    #: What was wrong, in a sentence, where the message does not begin with it.
    reason: str = ""
