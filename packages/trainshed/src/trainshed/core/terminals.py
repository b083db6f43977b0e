"""Shells in replicas, the saved files of failed replicas, and the names of a job's web pages. Also defines
`Terminals`, the optional part of the engine port."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Bytes, Nanos

MAX_ROWS = 1000
"""Maximum number of rows and of columns of a terminal."""
MAX_COMMAND_BYTES = 16 << 10
"""Maximum bytes of a command line, which is sent as one message."""
_LABEL = re.compile(r"[\w .-]*")
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,63}")


class TerminalRequest(Struct, frozen=True):
    """A request to open a shell."""

    #: A name for the prompt of the shell.
    label: str = ""
    #: Whether the shell has a terminal of the kind `term` with `rows` and `columns`. Otherwise it has plain
    #: streams, which transfer all bytes unchanged.
    is_terminal: bool = True
    rows: int = 24
    columns: int = 80
    term: str = "xterm-256color"
    #: A command line to run, or None for an interactive shell.
    command: str | None = None
    #: A destination to connect to instead of a shell: the number of a TCP port, or the name of a Unix socket
    #: in the program's directory.
    port: str | None = None
    #: (name, directory) of the buckets that are mounted for a shell in an autopsy (the kept files of a failed
    #: replica).
    buckets: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a field is not valid for a shell."""
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
                f"a command line has at most {MAX_COMMAND_BYTES} bytes; put the commands into a script file"
            )


class Autopsy(Struct, frozen=True):
    """The saved files of a failed replica. Exactly one of `exit_code`, `signal` and `lost` describes the
    replica's end."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    #: Number of the replica's run (incarnation) that failed.
    incarnation: int
    #: Time at which the files were saved, in nanoseconds since the epoch. `expires` has the same unit.
    kept: int
    expires: Nanos
    #: Bytes on disk, or None before they are counted.
    size: Bytes | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: Whether the replica was killed at its memory limit.
    oom: bool = False
    #: The reason why no exit status is known.
    lost: str | None = None
    #: The last lines of the replica's log.
    tail: str = ""
    #: The command line of the replica's program.
    argv: tuple[str, ...] = ()

    @property
    def end_text(self) -> str:
        """A text that describes how the replica ended."""
        if self.lost is not None:
            return f"lost: {self.lost}"
        if self.oom:
            return "out of memory"
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.exit_code}"


class Terminal(Protocol):
    """A shell in a replica, as its caller uses it. At most one task may read, and at most one may write at a
    time."""

    @property
    def status(self) -> int | None:
        """The shell's exit status, or 128 + N after signal N. None while the shell runs, or if it ended
        together with its replica."""
        ...

    async def read(self) -> bytes:
        """Return the next output, or b"" once the shell has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input. Waits while the shell does not read. Has no effect after the shell has ended."""
        ...

    async def end_input(self) -> None:
        """Close the shell's input."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Inform the shell about the terminal's new size."""
        ...

    def close(self) -> None:
        """End the shell. May be called twice."""
        ...


PAGES_LABEL: Final = "trainshed-ports"
"""Label of a job with its web pages: `NAME-PORT` or `NAME`, separated by `_`. A `NAME` without a port is the
Unix socket NAME.sock in the directory of the primary's program. Programs of other jobs cannot reach that
socket."""
NOTEBOOK: Final = "notebook"
_ENTRY: Final = re.compile(r"([a-z][a-z0-9]{0,19})(?:-([1-9][0-9]{0,4}))?")
HIGHEST: Final = 65_535


def is_port(port: str) -> bool:
    """Return whether a text is a valid port number."""
    return len(port) < 6 and port.isascii() and port.isdecimal() and 0 < int(port) <= HIGHEST


def dashboard_port(uid: JobUid) -> int:
    """Return the port for the dashboard of a job. Different jobs use different ports, because their programs
    may share a network."""
    return 10_000 + uid % 9_973


def page_entry(name: str, port: str) -> str:
    """Return the entry for a web page in the value of `PAGES_LABEL`: `NAME-PORT`, or `NAME` without a port.
    Raise ValueError for an invalid name or port."""
    text = f"{name}-{port}" if port else name
    if _ENTRY.fullmatch(text) is None or (port and not is_port(port)):
        raise ValueError(
            f"{name}={port} is not a page: write NAME=PORT, a name of at most 20 lowercase "
            f"letters and digits and a port from 1 to {HIGHEST}"
        )
    return text


def are_pages(text: str) -> bool:
    """Return whether a text is a valid value of `PAGES_LABEL` with unique names."""
    pages = pages_of([(PAGES_LABEL, text)]).values()
    return len(pages) > text.count("_") and all(p.endswith(".sock") or is_port(p) for p in pages)


def pages_of(labels: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the pages of a job: the port number or the socket name, by page name."""
    entries = map(_ENTRY.fullmatch, dict(labels).get(PAGES_LABEL, "").split("_"))
    return {made[1]: made[2] or f"{made[1]}.sock" for made in entries if made is not None}


class TerminalRefused(Exception):
    """A shell cannot be opened. The message contains the reason."""


@runtime_checkable
class Terminals(Protocol):
    """The part of an engine that opens shells, in addition to `engines.port.Engine`. Implementing it is
    optional. The default implementation is for engines without shells and without saved files of failed
    replicas."""

    async def open_terminal(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, request: TerminalRequest
    ) -> Terminal:
        """Open a shell next to the running program of a replica (`incarnation`: the number of this run), or
        connect to a port that the program can reach. The shell has the program's view of the machine,
        permissions and limits, and ends with the program. The shell does not keep the replica alive and does
        not affect how the replica ends. Raises TerminalRefused if the shell cannot be opened."""
        raise TerminalRefused("this engine does not support shells")

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        """Return the autopsies (kept files) of the job's failed replicas, in order of attempt and replica.
        Never blocks.

        A failed replica's files are saved when the engine would delete its directory, for the time that the
        operator has set. The files of stopped replicas are not saved.
        """
        return ()

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        """Open a shell with a failed replica's files, its program's view of the machine, and its environment
        without secrets. Raises TerminalRefused if the shell cannot be opened."""
        raise TerminalRefused("this engine does not keep the files of failed replicas")

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        """Delete the autopsy (kept files) of a failed replica. Return whether it existed. Raise
        TerminalRefused if a shell is open in it."""
        return False


class NoTerminals(Terminals):
    """Implements `Terminals` for an engine without shells."""
