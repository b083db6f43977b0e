"""Describes how users' setup scripts, and viewers of programs' output, are confined. They run in a separate
process at the isolation level of the jobs' programs.

`InstallationTerms` apply to all runs. A `Confinement` describes the view and the limits of one run of the
installer. A separate process enforces it (`keeper`), because a service with threads cannot create namespaces
for a child.
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
"""Prefixes of variables that may contain a password of a package index, or the path of a password file."""
_HOMES = "XDG_"
"""Prefix of variables that contain directories of the operator."""

MAX_MEMBERS = 100_000
"""Maximum number of files, directories and links in one archive."""
MAX_FILES = 1_000_000
"""Maximum number of files and directories of one installation. The service checks each of them."""
MAX_UNPACKED = 8 << 30
"""Maximum bytes of an archive and of its unpacked content."""
MAX_METADATA = 4 << 20
"""Maximum bytes of a file that describes a package: pyproject.toml, PKG-INFO, METADATA, setup.py,
setup.cfg."""
MAX_SECONDS = 60.0
"""Maximum processor time in seconds for checking the archives of one installation."""
MAX_MEMORY = 512 << 20
"""Maximum bytes of memory for that check, in addition to the memory at its start."""


class InstallationTerms(Struct, frozen=True):
    """The conditions of every confined run, such as an installation."""

    #: The isolation level of programs (`protocol.LEVEL_*`). Confined runs always use the same level.
    level: str
    #: Directories that appear empty to the run.
    hidden: tuple[str, ...] = ()
    #: Files that appear empty to the run.
    covered: tuple[str, ...] = ()
    #: Paths that the operator makes readable for every run, even inside hidden directories.
    visible: tuple[str, ...] = ()
    #: The limits in this field and the next three: memory, number of processes, disk, wall-clock time; None =
    #: unlimited.
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    seconds: float | None = None
    #: CPU weight, 100 per vCPU.
    cpu_weight: int | None = None
    #: Parent directories for control groups, by controller: memory, cpu, pids.
    bases: dict[str, str] = field(default_factory=dict[str, str])
    #: Ports of the service and of replicas, on which scripts must not listen.
    kept_ports: tuple[int, ...] = ()


class LentDirectory(Struct, frozen=True):
    """A directory of the service that a run sees read-only at another path. Programs may write to the
    original."""

    #: The directory of the service at which the path in `below` starts.
    base: str
    #: Names of the directories on the path from `base` to the directory. A program may have replaced any of
    #: them with a link, so links are not followed.
    below: tuple[str, ...]
    #: The path at which the directory is visible.
    place: str


class Confinement(Struct, frozen=True):
    """The directories and paths that one run may read or write, its time limit, and the general terms."""

    #: A directory for this run only. It contains the run's home, temporary files and downloads.
    workspace: str
    #: Other writable directories.
    writable: tuple[str, ...]
    #: Readable paths, which may be inside hidden directories of the terms.
    shown: tuple[str, ...]
    terms: InstallationTerms
    #: Name of the run's control groups; None = a name from the keeper's process ID.
    name: str | None = None
    #: End of the run, as a time of `time.monotonic`; None = unlimited.
    until: float | None = None
    #: Packages to check before the command starts (`trainshed.runtimes.archives`).
    archives: tuple[str, ...] = ()
    #: Arguments to add to the command if the runtime's own setuptools can build all packages.
    when_plain: tuple[str, ...] = ()
    #: Whether to add requirements that the wheels among the archives need but do not declare
    #: (`archives.missing_requirements`).
    corrected: bool = False
    #: A shared download cache; None = a private one. Shared only for runs without users' scripts.
    cache: str | None = None
    #: Directories visible read-only at other paths.
    lent: tuple[LentDirectory, ...] = ()
    #: File descriptors that the command inherits.
    handles: tuple[int, ...] = ()
    #: Whether the run uses the machine's network; otherwise it has an empty network. At level `session`, it
    #: always uses the machine's network.
    network: bool = True
    #: The name of this run in error messages.
    subject: str = "The installation"

    @property
    def changes(self) -> tuple[str, ...]:
        """All writable directories of the run except the workspace."""
        return (*self.writable, self.cache) if self.cache else self.writable

    @property
    def wheels(self) -> Path:
        return Path(self.workspace) / "wheels"

    def prepare(self) -> None:
        """Create the workspace. Raises OSError."""
        for name in ("home", "tmp", "var-tmp", "downloads", "wheels"):
            (Path(self.workspace) / name).mkdir(parents=True, exist_ok=True)

    def command(self, command: Sequence[str], line: int) -> list[str]:
        """Return the command line that runs `command` confined. `line`: file descriptor of a socket. If the
        keeper ends the command, it reports the reason on the socket (`read_verdict`). When the service closes
        its own socket of the pair, the keeper ends everything."""
        texts = (msgspec.json.encode(value).decode() for value in (sys.path, self))
        # With -I and -S, Python imports nothing from a user's own packages or the working directory before
        # `_START` runs.
        return [sys.executable, "-I", "-S", "-c", _START, *texts, str(line), *command]

    def environ(self, environ: dict[str, str], *, offline: bool) -> dict[str, str]:
        """Return the installer's variables inside the confinement. A run without a package index gets no
        passwords of indexes."""
        if self.cache:
            # Only the installer runs here and no users' scripts, so the installer may use its own settings
            # and the shared cache.
            return environ | {"TMPDIR": f"{self.workspace}/tmp"}
        kept = without_secrets(environ) if offline else environ
        kept = {name: value for name, value in kept.items() if not name.startswith(_HOMES)}
        own = {"HOME": "home", "TMPDIR": "tmp", "UV_CACHE_DIR": "downloads"}
        return kept | {name: f"{self.workspace}/{place}" for name, place in own.items()}


def read_verdict(line: socket.socket) -> str | None:
    """Return the reason why an exited keeper did not start an installation, or ended it: the level is not
    available, a limit was reached, or an archive was rejected. None = the installation ended normally."""
    line.setblocking(False)
    data = b""
    try:
        while chunk := line.recv(4096):
            data += chunk
    except OSError:
        # Return no reason: the keeper was killed, and another process still has the keeper's socket open.
        return None
    return data.decode(errors="replace") or None


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, except for those that may contain a password of a package index."""
    return {name: value for name, value in environ.items() if not name.startswith(_SECRETS)}
