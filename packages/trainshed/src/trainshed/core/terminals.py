"""Shells in replicas and the requests for them, what is kept of a failed replica, and by which names a job
offers web pages. Plain values; and `Terminals`, the optional half of the engine port."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Bytes, Nanos

MAX_ROWS = 1000
"""The most rows, and the most columns, of a terminal."""
MAX_COMMAND_BYTES = 16 << 10
"""The most bytes of a command line: it is passed on in one piece."""
_LABEL = re.compile(r"[\w .-]*")
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")


class TerminalRequest(Struct, frozen=True):
    """A shell to be opened."""

    #: The name in its prompt.
    label: str = ""
    #: With a terminal of `rows` and `columns`, of the kind `term`; otherwise with plain streams, through
    #: which any bytes come unchanged.
    is_terminal: bool = True
    rows: int = 24
    columns: int = 80
    term: str = "xterm-256color"
    #: A command line to run; None = an interactive shell.
    command: str | None = None
    #: The destination in place of a shell: the number of a TCP port, or the name of a Unix socket
    #: in the program's directory.
    port: str | None = None
    #: (name, directory) of the buckets that it sees in an autopsy.
    buckets: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what no shell can be given."""
        if not (0 < self.rows <= MAX_ROWS and 0 < self.columns <= MAX_ROWS):
            raise ValueError(f"a terminal has 1 to {MAX_ROWS} rows and columns")
        if not _TERM.fullmatch(self.term):
            raise ValueError(f"{self.term!r} is not a kind of terminal, such as xterm-256color")
        if not _LABEL.fullmatch(self.label):
            raise ValueError(
                f"{self.label!r} contains characters other than letters, digits, blanks, and . _ -"
            )
        if self.port and self.port.isdecimal() and not is_port(self.port):
            raise ValueError(f"{self.port} is not a port; ports have numbers from 1 to {HIGHEST}")
        command = self.command or ""
        if "\0" in command:
            raise ValueError("a command line cannot contain zero bytes")
        if len(command.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES:
            raise ValueError(
                f"a command line has at most {MAX_COMMAND_BYTES} bytes; put it into a file"
            )


class Autopsy(Struct, frozen=True):
    """The remains of a failed replica.

    Exactly one of `exit_code`, `signal` and `lost` describes its end.
    """

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    #: The incarnation that failed.
    incarnation: int
    #: When it was kept: nanoseconds since the epoch, as is `expires`.
    kept: int
    expires: Nanos
    #: Bytes on disk; None = not counted yet.
    size: Bytes | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: It died of its memory limit.
    oom: bool = False
    #: Why nothing more is known.
    lost: str | None = None
    #: The last lines of its log.
    tail: str = ""
    #: Its command line.
    argv: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.lost is not None:
            return f"lost: {self.lost}"
        if self.oom:
            return "out of memory"
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.exit_code}"


class Terminal(Protocol):
    """A shell in a replica, as its caller sees it. One reader and one writer at a time."""

    @property
    def status(self) -> int | None:
        """The shell's exit status, 128 + N after signal N; None while it runs, and if it was ended
        with its replica."""
        ...

    async def read(self) -> bytes:
        """Return the next output; b"" once the shell has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input. Waits for a shell that does not read; does nothing if it has ended."""
        ...

    async def end_input(self) -> None:
        """Close the shell's input."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Tell the shell the terminal's new size."""
        ...

    def close(self) -> None:
        """Hang up, which ends the shell. May be called twice."""
        ...


PAGES_LABEL: Final = "trainshed-ports"
"""Label of a job: `NAME-PORT` or `NAME`, with `_` between them. A `NAME` without a port is the
Unix socket NAME.sock in the directory of the primary's program, which programs of other jobs
cannot reach."""
NOTEBOOK: Final = "notebook"
_ENTRY: Final = re.compile(r"([a-z][a-z0-9]{0,19})(?:-([1-9][0-9]{0,4}))?")
HIGHEST: Final = 65_535


def is_port(port: str) -> bool:
    """Whether a text is the number of a port."""
    return len(port) < 6 and port.isascii() and port.isdecimal() and 0 < int(port) <= HIGHEST


def dashboard_port(uid: JobUid) -> int:
    """Return the port for the dashboard of a job: programs may share a network, so jobs have different
    ones."""
    return 10_000 + uid % 9_973


def page_entry(name: str, port: str) -> str:
    """Return what the label has for a page. Raises ValueError."""
    text = f"{name}-{port}" if port else name
    if _ENTRY.fullmatch(text) is None or (port and not is_port(port)):
        raise ValueError(
            f"{name}={port} is not a page: write NAME=PORT, a name of at most 20 lowercase "
            f"letters and digits and a port from 1 to {HIGHEST}"
        )
    return text


def are_pages(text: str) -> bool:
    """Whether a text is a value of `PAGES_LABEL`, with each name once."""
    pages = pages_of([(PAGES_LABEL, text)]).values()
    return len(pages) > text.count("_") and all(p.endswith(".sock") or is_port(p) for p in pages)


def pages_of(labels: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the pages that a job offers: by name the number of the port, or the name of the socket."""
    entries = map(_ENTRY.fullmatch, dict(labels).get(PAGES_LABEL, "").split("_"))
    return {made[1]: made[2] or f"{made[1]}.sock" for made in entries if made is not None}


class TerminalRefused(Exception):
    """A shell cannot be opened. The message contains the reason."""


@runtime_checkable
class Terminals(Protocol):
    """The additional interface of such an engine, besides `engines.port.Engine`. The default
    implementation is for engines without shells and without remains of failed replicas."""

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        """Open a shell beside the program of one live incarnation, or a connection to a port as the program
        could make it: it has the program's view of the machine, its rights and its limits, and is ended with
        it. It neither keeps the replica alive nor decides how that ends. Raises TerminalRefused."""
        raise TerminalRefused("this engine does not support shells")

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        """Return what is kept of the job's failed replicas, in order of attempt and replica. Never blocks. A
        replica's files are kept when its slot is released, if it failed and was not stopped, for as long as
        the operator has set."""
        return ()

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        """Open a shell where a failed replica's program ran: with the program's view of the machine, the
        files that it left, and its environment without secrets. Raises TerminalRefused."""
        raise TerminalRefused("this engine does not keep the files of failed replicas")

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        """Delete what is kept of a replica; return whether there was any. Raises TerminalRefused if a shell
        is open in it."""
        return False


class NoTerminals(Terminals):
    """`Terminals` of an engine that has none."""
