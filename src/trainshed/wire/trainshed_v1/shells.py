"""Records of shells, and of what failed replicas left."""

from trainshed.wire.trainshed_v1.record import Record


class ReplicaChoice(Record, frozen=True):
    """Names a replica."""

    #: As for a drill; "" = the primary, or all.
    replica: str = ""
    #: Whether what it left when it failed is meant, not the running replica.
    autopsy: bool = False
    #: Number of the attempt; 0 = the newest, or all.
    attempt: int = 0


class ShellTicket(Record, frozen=True):
    """A ticket for one shell; it can be used once, within a minute."""

    token: str = ""
    expire_time: str = ""
    #: Path of the WebSocket.
    path: str = ""
    #: URI of a page for a browser.
    uri: str = ""
    job: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0


class Autopsy(Record, frozen=True):
    """What is kept of a replica that failed."""

    replica: str = ""
    task: str = ""
    attempt: int = 0
    incarnation: int = 0
    kept_time: str = ""
    expire_time: str = ""
    #: -1 = not counted yet.
    bytes: int = -1
    #: How it ended, in words.
    how: str = ""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    #: Why no more is known of its end; "" = more is.
    lost: str = ""
    #: Last lines of the program.
    tail: str = ""
    argv: tuple[str, ...] = ()


class AutopsyList(Record, frozen=True):
    """A job's autopsies, by attempt and replica."""

    name: str = ""
    autopsies: tuple[Autopsy, ...] = ()


class Deleted(Record, frozen=True):
    """The number of autopsies that were deleted."""

    deleted: int = 0
