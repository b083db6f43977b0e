"""Makes system calls that not every version of Python supports: namespaces, mounts, process attributes.

Runs on Python 3.6.
"""

import contextlib
import ctypes
import errno
import os
import re
import signal
import struct
from typing import Any, Callable, Container, Iterable

_CLONE_VM = 0x00000100
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 0x1
_MOUNT_SETATTR = 442
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_KEYCTL_JOIN_SESSION_KEYRING = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# Mount flags, as returned by statvfs, that a remount in a user namespace must keep (mount_namespaces(7)).
_LOCKED_FLAGS = 0x1 | 0x2 | 0x4 | 0x8 | 0x400 | 0x800 | 0x1000

# PyDLL does not release the interpreter's lock, because these calls are short and the process has one thread.
_libc = ctypes.PyDLL(None, use_errno=True)
# Look up the functions now, because a later lookup would be repeated in each fork.
for _name in ("capset", "clone", "mount", "pause", "prctl", "setns", "syscall", "unshare"):
    getattr(_libc, _name)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))


def _call(name: str, what: str, *arguments: "Any") -> None:
    _check(getattr(_libc, name)(*arguments), what)


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises OSError."""
    try:
        _call("unshare", "unshare(%#x)" % flags, ctypes.c_int(flags))
    except OSError as error:
        # The error number also indicates a full disk, which is temporary. So replace it.
        if error.errno == errno.ENOSPC:
            text = "the sysctls user.max_*_namespaces allow no more namespaces"
            raise OSError(errno.EPERM, text) from None
        raise


_child_stack = ctypes.create_string_buffer(16 << 10)
"""Stack of the child of `fork_pausing_child`. The child makes only one call, which never returns."""


def fork_pausing_child(flags: int) -> int:
    """Create a child in new namespaces that only waits until it is killed; return its process ID. The child
    shares this process's memory, so that no memory is copied. Only one such child may exist. Raises
    OSError."""
    top = ctypes.c_void_p(ctypes.addressof(_child_stack) + len(_child_stack) & ~0xF)
    child: int = _libc.clone(_libc.pause, top, flags | _CLONE_VM | signal.SIGCHLD, None)
    _check(min(child, 0), "clone")
    return child


def enter_namespace(handle: int, kind: int) -> None:
    """Move this process into the namespace with the file descriptor `handle`. `kind`: the namespace's
    `CLONE_*` flag. Raises OSError."""
    _call("setns", "setns(%#x)" % kind, ctypes.c_int(handle), ctypes.c_int(kind))


def syscall(number: int, what: str, *arguments: "Any") -> int:
    """Make a system call for which the C library has no function. Integers are passed as C longs, bytes as
    pointers. `what`: name of the call in errors. Raises OSError."""
    long = ctypes.c_long
    passed = [long(argument) if type(argument) is int else argument for argument in arguments]
    result: int = _libc.syscall(long(number), *passed)
    if result < 0:
        _check(result, what)
    return result


def mount(
    source: "str | None", target: str, kind: "str | None" = None, flags: int = 0, data: "str | None" = None
) -> None:
    _call(
        "mount",
        "mount %s on %s" % (source or kind or "change", target),
        *[None if text is None else os.fsencode(text) for text in (source, target, kind)],
        ctypes.c_ulong(flags),
        None if data is None else os.fsencode(data),
    )


def bind(source: str, target: str) -> None:
    """Mount a file or a directory tree additionally at `target`. Raises OSError."""
    mount(source, target, None, MS_BIND | MS_REC)


def change_mount(
    place: str,
    what: "str | None" = None,
    *,
    directory: int = AT_FDCWD,
    flags: int = 0,
    added: int = 0,
    removed: int = 0,
    owners: int = 0,
) -> None:
    """Add and remove attributes of a mount (mount_setattr(2)). With AT_RECURSIVE in `flags`, all mounts below
    it are changed as well. Raises OSError. `place`: path relative to `directory`. `what`: name of the change
    in errors. `owners`: file descriptor of the user namespace that maps the owners of the mount's files; 0 =
    no mapping."""
    attributes = struct.pack("QQQQ", added, removed, 0, owners)
    what = what or "mount_setattr %s" % place
    syscall(_MOUNT_SETATTR, what, directory, os.fsencode(place), flags, attributes, len(attributes))


def make_read_only(target: str, below: bool = False, kept: "Iterable[str]" = ()) -> None:
    """Make the mount at `target` read-only. If `below` is set, all mounts below it become read-only as well,
    except for those at the paths `kept`. Raises OSError."""
    try:
        change_mount(target, flags=AT_RECURSIVE if below else 0, added=MOUNT_ATTR_RDONLY)
        for writable in kept:
            change_mount(writable, removed=MOUNT_ATTR_RDONLY)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        _change_each(os.path.realpath(target), below, set(map(os.path.realpath, kept)), MS_RDONLY)


def make_safe(target: str) -> None:
    """Ignore setuid bits and devices in the mount at `target` and in all mounts below it. Raises OSError."""
    try:
        change_mount(target, flags=AT_RECURSIVE, added=MS_NOSUID | MS_NODEV)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        _change_each(os.path.realpath(target), True, set(), MS_NOSUID | MS_NODEV)


def _change_each(target: str, below: bool, kept: "set[str]", flags: int) -> None:
    """Add mount flags without mount_setattr, for Linux before 5.12. The paths must not contain links. Skips
    mounts below `target` that other mounts cover or that this user cannot access, because programs cannot
    reach them either."""
    places = [target]
    if below:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounted = {_OCTAL.sub(lambda sign: chr(int(sign[1], 8)), line.split()[4]) for line in file}
        inside = target.rstrip("/") + "/"
        places += sorted(place for place in mounted - {target} if place.startswith(inside))
    for place in places:
        if place in kept:
            continue
        try:
            locked = os.statvfs(place).f_flag & _LOCKED_FLAGS
            mount(None, place, None, MS_REMOUNT | MS_BIND | flags | locked)
        except OSError as error:
            hidden = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EINVAL)
            if place == target or error.errno not in hidden:
                raise


_OCTAL = re.compile(r"\\([0-7]{3})")
"""An escaped character, such as a space, in the kernel's list of mounts."""


def pivot_root(new_root: str) -> None:
    """Make the mount at `new_root` the root of this mount namespace and detach the old one. Raises
    OSError."""
    os.chdir(new_root)
    _call("pivot_root", "pivot_root to %s" % new_root, b".", b".")
    _call("umount2", "umount the old root", b".", ctypes.c_int(MNT_DETACH))
    os.chdir("/")


def die_with_parent(number: int) -> None:
    """Have the kernel send signal `number` to this process when its parent exits. Forks of this process do
    not inherit this setting."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_helper(parent: int) -> None:
    """Make this fork of `parent` a helper, which the kernel kills when `parent` exits. Exits if `parent` has
    already exited.

    If `parent` is outside this namespace, its ID is 0, and the helper is killed when the namespace's first
    process exits. The helper does not receive `parent`'s notifications about children.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    if os.getppid() not in (0, parent):
        os._exit(0)


def fork_helper(work: "Callable[[], object]", kept: "Container[int] | None" = None) -> int:
    """Fork a process that calls `work` and is killed when this process exits; return its process ID. `kept`:
    file descriptors that stay open in the fork, in addition to the standard ones; None = all. Raises
    OSError."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            become_helper(parent)
            if kept is not None:
                close_all(h for h in open_handles() if h > 2 and h not in kept)
            work()
        finally:
            os._exit(1)
    return child


def join_new_keyring() -> None:
    """Join a new session keyring, without the keys of the parent process."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number:
        # Ignore a kernel without support for keys, and a policy that forbids the call.
        with contextlib.suppress(OSError):
            syscall(number, "keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


def forbid_new_privileges() -> None:
    """Prevent programs that this process executes from gaining rights, for example by setuid bits."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_inspection() -> None:
    """Prevent other processes of this user from tracing this process or reading its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def allow_inspection() -> None:
    """Undo `forbid_inspection`. Also call this after a change of users, which forbids inspection as well."""
    _prctl(_PR_SET_DUMPABLE, 1)


def limit_program_capabilities(kept: "Iterable[int]") -> None:
    """Limit the capabilities of programs that this process executes to `kept`, even if the programs run as
    root of this namespace. Raises OSError."""
    allowed = frozenset(kept)
    for number in range(64):
        if number not in allowed:
            try:
                _prctl(_PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return  # The kernel has no capability from this number on, so none is left to drop.
                raise


def set_capabilities(capabilities: "Iterable[int]") -> None:
    """Reduce this process's capabilities to the given ones, which it must already have. The capabilities of
    programs that it executes are not affected: see `limit_program_capabilities`. Raises OSError."""
    mask = sum(1 << number for number in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    # The header selects version 3 of the call, and process 0, which is this process. The data has the lower
    # and then the upper 32 bits of three sets: effective, permitted, inheritable.
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", "capset", header, struct.pack("6I", low, low, 0, high, high, 0))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent exits."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name of this process in `ps` and `top`. At most 15 bytes are shown."""
    _prctl(_PR_SET_NAME, name.encode("ascii")[:15])


_ZERO = ctypes.c_ulong(0)


def _prctl(option: int, value: "int | bytes") -> None:
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    _call("prctl", "prctl(%d)" % option, option, argument, _ZERO, _ZERO, _ZERO)


def write(path: str, text: str) -> None:
    """Write a text to a file of the kernel with one system call. Raises OSError."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)


_PIDFD_OPEN = 434


def process_handle(process: int) -> int:
    """Return a file descriptor (pidfd) that identifies a process even if its ID is reused. Raises OSError if
    the process does not exist or is a thread, or if the kernel has no pidfds (before Linux 5.3)."""
    return syscall(_PIDFD_OPEN, "pidfd_open", process, 0)


BOOT_CLOCK = 7
"""CLOCK_BOOTTIME: the monotonic clock that also runs while the machine is suspended."""
_TIMER_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


def boot_timer() -> int:
    """Return the file descriptor of a timer on `BOOT_CLOCK`. It is readable after the timer expires. Raises
    OSError."""
    handle = _libc.timerfd_create(ctypes.c_int(BOOT_CLOCK), ctypes.c_int(_TIMER_FLAGS))
    _check(min(handle, 0), "timerfd_create")
    return handle


def set_boot_timer(handle: int, moment: int) -> None:
    """Set the time at which a `boot_timer` expires, in ns of `BOOT_CLOCK`. A timer with a time in the past
    expires immediately. Raises OSError."""
    value = struct.pack("llll", 0, 0, *divmod(max(moment, 1), 10**9))
    _call("timerfd_settime", "timerfd_settime", ctypes.c_int(handle), _ABSOLUTE, value, None)


def open_handles() -> "list[int]":
    """Return the open file descriptors of this process. The result may include the descriptor that was used
    for the listing, which is closed by now."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def close_all(handles: "Iterable[int]") -> None:
    """Close file descriptors. Descriptors that are not open are ignored."""
    for handle in handles:
        with contextlib.suppress(OSError):
            os.close(handle)


def close_inherited(keep: int) -> None:
    """Close all file descriptors inherited from the parent except `keep`. Standard input, output and error
    become /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    close_all(handle for handle in open_handles() if handle > 2 and handle != keep)


def child_signals() -> int:
    """Return the non-blocking read end of a pipe that receives a byte whenever a child exits. The write end
    stays open."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, _ignore_signal)
    signal.set_wakeup_fd(write)
    return read


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the event loop reaps the exited child. This handler must exist, because Python writes the
    wake-up byte only for signals with a handler."""
