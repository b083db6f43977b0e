"""The first process of an installation: gives itself the view and the limits, looks at the archives, becomes the installer."""

import os
import resource
import signal
import socket
from pathlib import Path

from trainshed.replica import protocol
from trainshed.replica.sandbox import levels, mounts, socket_calls, users, view
from trainshed.replica.supervisor import program
from trainshed.replica.system import cgroups, kernel, processes, unix_sockets
from trainshed.runtimes import archives
from trainshed.runtimes.confinement import Confinement, without_secrets

_FIRST_USER = 0x7FFE0000
"""The machine's user numbers of all installations: they see nothing of each other, and own no file."""
_HOSTS = "/etc/hosts"
_OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
"""What the interpreter ignores, or the keeper handles."""


def become(
    confinement: Confinement,
    command: list[str],
    groups: cgroups.Groups,
    keeper: socket.socket,
    parent: int,
) -> None:
    """Returns only if it came to nothing, which the keeper is told: `level TEXT`, `archive TEXT`. `parent`: the keeper."""
    try:
        _become(confinement, command, groups, keeper, parent)
    except archives.Refused as refusal:
        word, text = "archive", str(refusal)
    except OSError as failure:
        word, text = "level", str(failure)
    except Exception as failure:  # It has no other way to speak.
        word, text = "level", repr(failure)
    else:
        return
    keeper.sendall(f"{word} {' '.join(text.split())}\n".encode(errors="replace"))


def _become(
    confinement: Confinement,
    command: list[str],
    groups: cgroups.Groups,
    keeper: socket.socket,
    parent: int,
) -> None:
    archives.load()
    level = confinement.terms.level
    # Of its own, also to the kernel: who signals his group must not reach the keeper.
    os.setsid()
    groups.enter()
    kernel.leave_keyring()
    count = _processes_of_user() if level == protocol.LEVEL_SESSION else 0
    place = Path.cwd()
    # The service keeps what it makes to itself. Whoever it is inside has to pass the directories that are made on the way
    # to what is shown.
    os.umask(0o022)
    if level != protocol.LEVEL_SESSION:
        seen = _view(confinement)
        seen.enter()
        mounts.freeze_all((confinement.room, *confinement.changes, *_OWN_PLACES))
        levels.drop(level, seen.owners, in_image=False)
    kernel.forbid_new_privileges()
    _be_asked(keeper)
    if level != protocol.LEVEL_SESSION:
        kernel.drop_all_capabilities()
    _limit(confinement, count)
    # Only now: becoming another user has the kernel forget it.
    kernel.help_parent(parent)
    os.chdir(place)
    plain = archives.look_at_all(confinement.archives, confinement.terms.unpacked_bytes)
    more = confinement.when_plain if plain else ()
    for number in _DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    environ = without_secrets(os.environ) if "--offline" in more else dict(os.environ)
    os.execvpe(command[0], [*command, *more], environ)


def _view(confinement: Confinement) -> view.View:
    room, terms = confinement.room, confinement.terms
    mounts = [(path, path, True) for path in terms.visible]
    mounts += [(path, path, False) for path in (room, *confinement.changes)]
    mounts += [(path, path, True) for path in confinement.shown if not Path(path).is_dir()]
    return view.View(
        hostname="installation",
        hosts_file=_HOSTS,
        files=room,
        scratch=f"{room}/view",
        binds=[(f"{room}/tmp", "/tmp"), (f"{room}/var-tmp", "/var/tmp")],
        hidden=terms.hidden,
        covered=terms.covered,
        read_only=confinement.shown,
        mounts=mounts,
        user_range=(_FIRST_USER, users.COUNT) if terms.level == protocol.LEVEL_OWN else (),
        shm_bytes=terms.memory_bytes,
    )


def _be_asked(keeper: socket.socket) -> None:
    """Let the keeper answer calls of bind, as a shim does for its program; without it, where the kernel cannot do that."""
    try:
        handle = socket_calls.listen(connect=False)
    except OSError:
        return
    if handle >= 0:
        unix_sockets.send(keeper, b"asked\n", handle)
        os.close(handle)


def _limit(confinement: Confinement, others: int) -> None:
    """What is limited of a process alone. `others`: processes that count with those of the installation."""
    terms = confinement.terms
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if terms.disk_bytes:
        _lower(resource.RLIMIT_FSIZE, terms.disk_bytes)
    if terms.processes and not terms.pids_base:
        program.limit_processes(terms.processes + others)


def _lower(kind: int, wanted: int) -> None:
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        wanted = min(wanted, ceiling)
    resource.setrlimit(kind, (wanted, wanted))


def _processes_of_user() -> int:
    """Processes and threads that this user has: without a namespace they count together."""
    count = 0
    for process in processes.parents():
        try:
            if os.stat(f"/proc/{process}").st_uid == os.geteuid():  # noqa: PTH116 -- as all of /proc here
                count += len(os.listdir(f"/proc/{process}/task"))  # noqa: PTH208 -- likewise
        except OSError:
            continue  # It has ended.
    return count
