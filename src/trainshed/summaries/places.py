"""Where event files lie, as the rest of the house names such a place."""

from msgspec import Struct


class LogDirectory(Struct, frozen=True):
    """A directory with event files of a job."""

    #: Unlike those of the others that are looked at together: letters, digits, `.`, `_` and `-`; "" where it
    #: is the only one.
    label: str
    #: `gs://BUCKET/PATH`.
    uri: str
    #: Whose programs wrote it.
    project: str
