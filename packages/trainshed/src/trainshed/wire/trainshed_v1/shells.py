"""Records of shells."""

from trainshed.wire.trainshed_v1.record import Record


class ReplicaChoice(Record, frozen=True):
    """Names a replica."""

    #: As for a drill; "" = the primary.
    replica: str = ""
    #: Whether what it left when it failed is meant, not the running replica.
    autopsy: bool = False
    #: Number of the attempt; 0 = the newest.
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
