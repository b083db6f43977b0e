"""TensorBoard for people, in a browser."""

from trainshed.wire.trainshed_v1.record import Record


class ViewRequest(Record, frozen=True):
    """What to look at."""

    #: Further jobs, by name, id or uid, to be compared with the one of the path.
    others: tuple[str, ...] = ()


class ViewLink(Record, frozen=True):
    """A link that opens TensorBoard for some jobs."""

    #: The page for a browser. Whoever has it can look, as long as the jobs exist.
    uri: str = ""
    #: What the page sends to open it.
    view: str = ""
    key: str = ""
    #: Where the event files lie.
    directories: tuple[str, ...] = ()
    #: Whether there are any by now.
    has_files: bool = False
