"""How a shell in a replica is asked for, and what is known of the files that a failed replica left. Plain
values."""

import re
from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId

MOST_ROWS = 1000
"""Of a terminal, and most columns."""
MOST_COMMAND = 16 << 10
"""Bytes of a command line: all of an order is handed on at once."""
_LABEL = re.compile(r"[\w .-]*")
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")


@dataclass(frozen=True, slots=True)
class TerminalRequest:
    """A shell to be opened.

    `is_terminal`: with a terminal of `rows` and `columns`, of the kind `term`; otherwise with plain streams,
    through which any bytes come unchanged. `command`: a command line to run in place of an interactive shell.
    `label`: what its prompt names.
    """

    label: str = ""
    is_terminal: bool = True
    rows: int = 24
    columns: int = 80
    term: str = "xterm-256color"
    command: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what no shell can be given."""
        if not (0 < self.rows <= MOST_ROWS and 0 < self.columns <= MOST_ROWS):
            raise ValueError(f"a terminal has 1 to {MOST_ROWS} rows and columns")
        if not _TERM.fullmatch(self.term):
            raise ValueError(f"{self.term!r} is no kind of terminal, such as xterm-256color")
        if not _LABEL.fullmatch(self.label):
            raise ValueError(f"{self.label!r} holds more than letters, digits, blanks, and . _ -")
        if "\0" in self.command:
            raise ValueError("a command line holds no zero bytes")
        if len(self.command.encode("utf-8", "surrogatepass")) > MOST_COMMAND:
            raise ValueError(f"a command line has at most {MOST_COMMAND} bytes; put it into a file")


@dataclass(frozen=True, slots=True)
class Autopsy:
    """What is kept of a replica that failed. Moments in nanoseconds since the epoch.

    `incarnation`: which one it was. Exactly one of `exit_code`, `signal` and `lost` (why there is no more to
    say) tells how it ended. `oom`: it died of its memory limit. `tail`: the last lines of its log. `size`:
    bytes on disk, -1 = not counted yet. `argv`: what it ran.
    """

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    kept: int
    expires: int
    size: int
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    lost: str = ""
    tail: str = ""
    argv: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.lost:
            return f"lost: {self.lost}"
        if self.oom:
            return "out of memory"
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.exit_code}"
