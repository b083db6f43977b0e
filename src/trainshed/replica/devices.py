"""The /dev of a replica: the harmless devices, terminals and shared memory of its own, and the GPUs that it was given.

Runs on Python 3.6.
"""

import os

from trainshed.replica import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)


def show(place: str, given: "Sequence[str]", shm_bytes: int) -> None:
    """Mount it on `place`. `given`: device files of the machine's, by path; those that are not there are left out.
    `shm_bytes`: size of /dev/shm, 0 = the kernel's choice. Raises OSError."""
    wanted = ["/dev/" + name for name in _HARMLESS] + list(given)
    handles = [(_open(path), path) for path in wanted]
    os.makedirs(place, exist_ok=True)
    system.mount("tmpfs", place, "tmpfs", system.MS_NOSUID, "mode=755,size=64k")
    for handle, path in handles:
        if handle < 0:
            continue
        target = place + path[len("/dev") :]
        above = os.path.dirname(target)
        if above != place:
            os.makedirs(above, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        system.bind("/proc/self/fd/%d" % handle, target)
        os.close(handle)
    for name, target in _LINKS:
        os.symlink(target, os.path.join(place, name))
    os.mkdir(place + "/pts")
    terminals = system.MS_NOSUID | system.MS_NOEXEC
    system.mount(
        "devpts", place + "/pts", "devpts", terminals, "newinstance,ptmxmode=0666,mode=0620"
    )
    # Shared memory of its own, so that nothing of a killed program stays behind there.
    os.mkdir(place + "/shm")
    size = ",size=%d" % shm_bytes if shm_bytes else ""
    shared = system.MS_NOSUID | system.MS_NODEV
    system.mount("tmpfs", place + "/shm", "tmpfs", shared, "mode=1777" + size)


def _open(path: str) -> int:
    try:
        return os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return -1
