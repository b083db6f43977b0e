"""Describes how users' setup scripts, and viewers of what programs wrote, are confined: a separate process at
the isolation level of the jobs' programs.

`InstallationTerms` say how tightly; `Confinement` says what one run of the installer may see, change and use.
A process of its own carries it out (`keeper`), because a service with threads cannot make namespaces for a
child.
"""

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from trainshed.runtimes.keeper import main
main()
"""
_SECRETS = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX", "NETRC")
"""Prefixes of variables that may hold, or lead to, a password of a package index."""
_HOMES = "XDG_"
"""Prefix of variables that name directories of the operator."""

MOST_MEMBERS = 100_000
"""Files, directories and links in one archive."""
MOST_FILES = 1_000_000
"""Files and directories that one installation may leave, since the service examines each of them."""
MOST_UNPACKED = 8 << 30
"""Bytes of one archive's content, and of the archive itself."""
MOST_METADATA = 4 << 20
"""Bytes of one of the files that describe a package: pyproject.toml, PKG-INFO, METADATA, setup.py,
setup.cfg."""
MOST_SECONDS = 60.0
"""Seconds that a processor may compute for checking the archives of one installation."""
MOST_MEMORY = 512 << 20
"""Bytes of memory for checking them, beyond what the process has before."""


class InstallationTerms(Struct, frozen=True):
    """What applies to every installation."""

    #: The isolation level of programs (`protocol.LEVEL_*`), never another.
    level: str
    #: Directories that look empty.
    hidden: tuple[str, ...] = ()
    #: Files that look empty.
    covered: tuple[str, ...] = ()
    #: Paths that may be read because the operator says so, wherever they are.
    visible: tuple[str, ...] = ()
    #: Limits of memory, of processes, of disk and of wall-clock time; None = there is none.
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    seconds: float | None = None
    #: CPU weight, 100 per vCPU.
    cpu_weight: int | None = None
    #: Directories in which control groups are made, by what these limit: memory, cpu, pids.
    bases: dict[str, str] = field(default_factory=dict[str, str])
    #: Ports of the service and of replicas, on which no script may listen.
    kept_ports: tuple[int, ...] = ()


class LentDirectory(Struct, frozen=True):
    """A directory that programs write to, shown in another place."""

    #: A directory of the service.
    base: str
    #: Names of the directories on the way from there. A program may have replaced each by a link; none is
    #: followed.
    below: tuple[str, ...]
    #: Where it is shown.
    place: str


class Confinement(Struct, frozen=True):
    """Where one installation runs, what it may read and change, and for how long."""

    #: A directory for this one run, with its home, its temporary files and its downloads.
    workspace: str
    #: Other directories that it may change.
    writable: tuple[str, ...]
    #: Paths that it may read, even inside hidden directories of the terms.
    shown: tuple[str, ...]
    terms: InstallationTerms
    #: Name of its control groups; None = one made of the keeper's process id.
    name: str | None = None
    #: When it is ended, in seconds of `time.monotonic`; None = never.
    until: float | None = None
    #: Packages that are checked before the command is begun (`trainshed.runtimes.archives`).
    archives: tuple[str, ...] = ()
    #: Arguments added to the command if the runtime's own setuptools can build all of them.
    when_plain: tuple[str, ...] = ()
    #: Whether to add requirements that the wheels among them should have (`archives.also_needed`).
    corrected: bool = False
    #: A download cache that others share, only where no script of a user runs; None = it has its own.
    cache: str | None = None
    #: Directories shown read-only in other places.
    lent: tuple[LentDirectory, ...] = ()
    #: Handles that the command inherits.
    handles: tuple[int, ...] = ()
    #: Whether it has the machine's network; otherwise it has an empty one of its own. At level `session` it
    #: always has the machine's.
    network: bool = True
    #: What is confined, as errors name it.
    subject: str = "The installation"

    @property
    def changes(self) -> tuple[str, ...]:
        """All directories that it may change, except the workspace."""
        return (*self.writable, self.cache) if self.cache else self.writable

    @property
    def wheels(self) -> Path:
        return Path(self.workspace) / "wheels"

    def prepare(self) -> None:
        """Make the workspace. Raises OSError."""
        for name in ("home", "tmp", "var-tmp", "downloads", "wheels"):
            (Path(self.workspace) / name).mkdir(parents=True, exist_ok=True)

    def command(self, command: Sequence[str], line: int) -> list[str]:
        """Return the command line that runs `command` confined. `line`: handle of a socket, over which the
        keeper reports why it ended the command (`read_verdict`); when its other end is closed, everything is
        ended."""
        texts = (msgspec.json.encode(value).decode() for value in (sys.path, self))
        # Nothing is imported on the way, neither from a user's own packages nor from the working directory.
        return [sys.executable, "-I", "-S", "-c", _START, *texts, str(line), *command]

    def environ(self, environ: dict[str, str], *, offline: bool) -> dict[str, str]:
        """Return the installer's variables as they are inside. A run that needs no index gets no password of
        one."""
        if self.cache:
            # Only the installer itself runs, and no script of a user: it has its settings and the shared
            # cache.
            return environ | {"TMPDIR": f"{self.workspace}/tmp"}
        kept = without_secrets(environ) if offline else environ
        kept = {name: value for name, value in kept.items() if not name.startswith(_HOMES)}
        own = {"HOME": "home", "TMPDIR": "tmp", "UV_CACHE_DIR": "downloads"}
        return kept | {name: f"{self.workspace}/{place}" for name, place in own.items()}


def read_verdict(line: socket.socket) -> str | None:
    """Return why a keeper that has ended did not begin an installation, or ended it: the level is not
    available, a limit was reached, or an archive was refused; None = none of these, it ended by itself."""
    line.setblocking(False)
    data = b""
    try:
        while chunk := line.recv(4096):
            data += chunk
    except OSError:
        return None  # It was killed, and another process still has its end.
    return data.decode(errors="replace") or None


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that may hold a password of a package index."""
    return {name: value for name, value in environ.items() if not name.startswith(_SECRETS)}
