"""Where setup scripts of users run: a process kept apart as far as the machine lets, as the programs of jobs are.

`Confinement` says what one installation may see and change; `main`, in a process of its own, makes it so and becomes the
installer. A process of its own, because a service with threads cannot make namespaces for a child.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainshed.replica import protocol, sandbox, system, users, view

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from trainshed.runtimes.confinement import main
main()
"""
_FIRST_USER = 0x7FFE0000
"""The machine's user numbers of all installations: they see nothing of each other, and own no file."""
_HOSTS = "/etc/hosts"
_SECRETS = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX", "NETRC")
_HOMES = ("XDG_",)


@dataclass(frozen=True, slots=True)
class Confinement:
    """`room`: a directory for this one installation, with its home, its temporary files and its downloads. `writable`: what
    else it may change. `shown`: what it may read, even inside of what is `hidden`. `levels`: which sandbox levels may be
    used (`protocol.LEVEL_*`), () = the strongest that works."""

    room: str
    writable: tuple[str, ...]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    levels: tuple[str, ...] = ()

    @property
    def wheels(self) -> Path:
        """Where what was built may be left."""
        return Path(self.room) / "wheels"

    def prepare(self) -> None:
        """Make the room."""
        for name in ("home", "tmp", "downloads", "wheels"):
            (Path(self.room) / name).mkdir(parents=True, exist_ok=True)

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` inside."""
        told = (msgspec.json.encode(each).decode() for each in (sys.path, self))
        # Nothing is looked up on the way: neither a user's own packages nor the working directory's.
        return [sys.executable, "-I", "-S", "-c", _START, *told, *command]

    def environ(self, environ: dict[str, str], *, offline: bool) -> dict[str, str]:
        """The installer's variables as they are inside. Whoever needs no index is told no password of one."""
        gone = (*_HOMES, *_SECRETS) if offline else _HOMES
        kept = {name: value for name, value in environ.items() if not name.startswith(gone)}
        own = {"HOME": "home", "TMPDIR": "tmp", "UV_CACHE_DIR": "downloads"}
        return kept | {name: f"{self.room}/{place}" for name, place in own.items()}


def _run(confinement: Confinement, command: list[str]) -> int:
    """Run the command at the first level that works; its exit status."""
    causes: list[str] = []
    for level in confinement.levels or sandbox.LEVELS:
        if level == protocol.LEVEL_SESSION:
            # Where nothing can be mounted: its own variables, home and process group are all there is.
            os.execvp(command[0], command)
        root = level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT)
        if not system.LINUX or root != (os.geteuid() == 0):
            continue
        status, cause = _try(level, confinement, command)
        if not cause:
            return status
        causes.append(f"{level}: {cause}")
    os.write(2, f"error: packages cannot be installed apart ({'; '.join(causes)})\n".encode())
    return 1


def _try(level: str, confinement: Confinement, command: list[str]) -> tuple[int, str]:
    """(exit status, why it could not be begun)."""
    answer, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        try:
            sandbox.detach(level)
            first = os.fork()
            if first == 0:
                _become(level, confinement, command)
            os.close(say)
            os._exit(_status_of(first))
        except OSError as failure:
            os.write(say, str(failure).encode(errors="replace"))
        finally:
            os._exit(1)
    os.close(say)
    with os.fdopen(answer, "rb") as told:
        cause = told.read().decode(errors="replace")
    return _status_of(child), cause


def _become(level: str, confinement: Confinement, command: list[str]) -> None:
    """Process 1 of its namespace: see only what it may, and be the installer. Raises OSError."""
    writable = (confinement.room, *confinement.writable)
    mounts = [(path, path, False) for path in writable]
    mounts += [(path, path, True) for path in confinement.shown if not Path(path).is_dir()]
    seen = view.View(
        hostname="installation",
        hosts_file=_HOSTS,
        files=confinement.room,
        scratch=f"{confinement.room}/view",
        binds=[(f"{confinement.room}/tmp", "/tmp")],
        hidden=confinement.hidden,
        read_only=confinement.shown,
        mounts=mounts,
        user_range=(_FIRST_USER, users.COUNT) if level == protocol.LEVEL_OWN else (),
    )
    place = Path.cwd()
    # Whoever it is inside has to pass the directories that are made on the way to what is shown.
    os.umask(0o022)
    seen.enter()
    sandbox.drop(level, seen.owners, in_image=False)
    system.forbid_new_privileges()
    system.die_with_parent(signal.SIGKILL)
    os.chdir(place)
    os.execvp(command[0], command)


def _status_of(child: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def main() -> None:
    """With the arguments DOCUMENT COMMAND..."""
    found = msgspec.json.decode(sys.argv[1], type=Confinement)
    sys.exit(_run(found, sys.argv[2:]))
