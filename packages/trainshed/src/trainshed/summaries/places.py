"""How other packages name a directory with event files."""

from msgspec import Struct


class LogDirectory(Struct, frozen=True):
    """A directory with event files of a job."""

    #: A name that differs from those shown with it: letters, digits, `.`, `_` and `-`; "" if it is the only
    #: one.
    label: str
    #: `gs://BUCKET/PATH`.
    uri: str
    #: The project whose programs wrote it.
    project: str
