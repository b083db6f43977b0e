"""Records of TensorBoard views for a browser."""

from trainshed.wire.trainshed_v1.record import Record


class ViewRequest(Record, frozen=True):
    """What a view shows."""

    #: Further jobs, by name, id or uid, to compare with the one of the path.
    others: tuple[str, ...] = ()


class ViewLink(Record, frozen=True):
    """A link that opens TensorBoard for some jobs."""

    #: The page for a browser. Anybody who has it can look, as long as the jobs exist.
    uri: str = ""
    #: What the page sends to open it.
    view: str = ""
    key: str = ""
    #: Directories of the event files.
    directories: tuple[str, ...] = ()
    #: Whether there are any yet.
    has_files: bool = False
