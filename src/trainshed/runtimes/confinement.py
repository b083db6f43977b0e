"""The confinement of users' setup scripts, and of viewers of what programs wrote: a process kept apart at the
level of the jobs' programs, and on what terms.

`InstallationTerms` say how tightly; `Confinement` says what one run of the installer may see, change and
take. It is carried out by a process of its own (`keeper`), because a service with threads cannot make
namespaces for a child.
"""

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from trainshed.runtimes.keeper import main
main()
"""
_SECRETS = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX", "NETRC")
"""How variables begin that may hold, or lead to, a password of a package index."""
_HOMES = "XDG_"
"""How those begin that name directories of the operator's."""

MOST_MEMBERS = 100_000
"""Files, directories and links in one archive."""
MOST_FILES = 1_000_000
"""Files and directories that one installation may leave: the service looks at each of them."""
MOST_UNPACKED = 8 << 30
"""Bytes of one archive's content, and of the archive itself."""
MOST_METADATA = 4 << 20
"""Bytes of one of the files that say what a package is: pyproject.toml, PKG-INFO, METADATA, setup.py,
setup.cfg."""
MOST_SECONDS = 60.0
"""Seconds for looking at one archive."""
MOST_MEMORY = 512 << 20
"""Bytes of memory for looking at one archive."""


class LimitSettings(Struct, frozen=True):
    """The settings that limits come from, as errors name them; "" = from none."""

    memory: str = "build_memory"
    processes: str = "max_processes"
    disk: str = "build_disk"
    seconds: str = "build_time"


class InstallationTerms(Struct, frozen=True):
    """What holds for each installation."""

    #: The sandbox level of programs (`protocol.LEVEL_*`), never another.
    level: str
    #: Directories that look empty.
    hidden: tuple[str, ...] = ()
    #: Files that look empty.
    covered: tuple[str, ...] = ()
    #: What may be read by the operator's wish, wherever it lies.
    visible: tuple[str, ...] = ()
    #: 0 = no limit, like the next three.
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    #: Of wall-clock time.
    seconds: float = 0.0
    #: 100 per vCPU; 0 = not set.
    cpu_weight: int = 0
    #: Directory of a control group, like the next two; "" = none.
    memory_base: str = ""
    cpu_base: str = ""
    pids_base: str = ""
    #: Ports of the service and of replicas, which no script may listen on.
    kept_ports: tuple[int, ...] = ()
    #: How much may come out of all packages.
    unpacked_bytes: int = MOST_UNPACKED
    settings: LimitSettings = LimitSettings()


Kind = Literal["", "level", "limit", "archive"]


class Verdict(msgspec.Struct, frozen=True):
    """Why an installation was ended, or not begun."""

    #: Its `level` cannot be had, a `limit` was reached, an `archive` was refused; "" = none of them, it ended
    #: by itself.
    kind: Kind = ""
    text: str = ""


class LentDirectory(Struct, frozen=True):
    """A directory that programs write to, shown elsewhere."""

    #: A directory of ours.
    base: str
    #: The names from there on, each of which a program may have made a link of: none is followed.
    below: tuple[str, ...]
    #: Where it is shown.
    place: str


class Confinement(Struct, frozen=True):
    """Where one installation runs, what it may read and change, and how long."""

    #: A directory for this one run, with its home, its temporary files and its downloads.
    workspace: str
    #: What else it may change.
    writable: tuple[str, ...]
    #: What it may read, even inside of what the terms hide.
    shown: tuple[str, ...]
    terms: InstallationTerms
    #: Of its control groups.
    name: str = ""
    #: Moment of `time.monotonic` at which it is ended, in seconds; 0 = never.
    until: float = 0.0
    #: Packages that are looked at before the command is begun (`trainshed.runtimes.archives`).
    archives: tuple[str, ...] = ()
    #: What is added to the command if the runtime's own setuptools can build all of them.
    when_plain: tuple[str, ...] = ()
    #: Whether requirements are added that the wheels among them should have (`runtimes.corrections`).
    corrected: bool = False
    #: A download cache that others use as well, only where no script of a user runs; "" = downloads of its
    #: own.
    cache: str = ""
    #: Directories that are shown elsewhere, to be read only.
    lent: tuple[LentDirectory, ...] = ()
    #: Handles that the command gets.
    handles: tuple[int, ...] = ()
    #: Whether it has the machine's network; without, it has one of its own with nothing in it. At level
    #: `session` it has it in any case.
    network: bool = True
    #: What is kept apart, as errors name it.
    subject: str = "The installation"

    @property
    def changes(self) -> tuple[str, ...]:
        """All that it may change besides the workspace."""
        return (*self.writable, self.cache) if self.cache else self.writable

    @property
    def wheels(self) -> Path:
        """Where what was built may be left."""
        return Path(self.workspace) / "wheels"

    def prepare(self) -> None:
        """Make the workspace."""
        for name in ("home", "tmp", "var-tmp", "downloads", "wheels"):
            (Path(self.workspace) / name).mkdir(parents=True, exist_ok=True)

    def command(self, command: Sequence[str], line: int) -> list[str]:
        """The command that runs `command` inside. `line`: handle of a socket, by which it says why it ended
        the command (`Verdict`); at its end everything is ended."""
        told = (msgspec.json.encode(each).decode() for each in (sys.path, self))
        # Nothing is looked up on the way: neither a user's own packages nor the working directory's.
        return [sys.executable, "-I", "-S", "-c", _START, *told, str(line), *command]

    def environ(self, environ: dict[str, str], *, offline: bool) -> dict[str, str]:
        """The installer's variables as they are inside. Whoever needs no index is told no password of one."""
        if self.cache:
            # The installer itself, and no script of a user: it has its settings, and the cache of all.
            return environ | {"TMPDIR": f"{self.workspace}/tmp"}
        kept = without_secrets(environ) if offline else environ
        kept = {name: value for name, value in kept.items() if not name.startswith(_HOMES)}
        own = {"HOME": "home", "TMPDIR": "tmp", "UV_CACHE_DIR": "downloads"}
        return kept | {name: f"{self.workspace}/{place}" for name, place in own.items()}


def read_verdict(line: socket.socket) -> Verdict:
    """What a keeper that is over has said."""
    line.setblocking(False)
    data = b""
    try:
        while chunk := line.recv(4096):
            data += chunk
    except OSError:
        return Verdict()  # It was killed, and somebody else holds its end.
    try:
        return msgspec.json.decode(data, type=Verdict) if data else Verdict()
    except msgspec.DecodeError:
        return Verdict()


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what may hold a password of a package index."""
    return {name: value for name, value in environ.items() if not name.startswith(_SECRETS)}
