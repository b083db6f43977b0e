"""Filters a replica's system calls. The kernel notifies the shim of some calls, and rejects other calls that
would bypass the shim.

The shim handles bind and connect (`socket_calls`). The following calls fail with the error of
a kernel that does not have them. Libraries handle this error:

- io_uring, because its requests are not system calls
- calls with x32 numbers
- bind in 32-bit programs; their other calls work
- MPTCP and SMC sockets, because Landlock does not restrict their TCP ports

Calls that would set a file's setuid bit are rejected, because a program's files in buckets belong to the
service's user. The calls are allowed for programs of a container image.

If the kernel has Landlock for the network (Linux 6.7), the kernel itself also forbids every TCP bind of the
program. So changing an argument after the check has no effect (TOCTOU).

Runs on Python 3.6.
"""

import ctypes
import errno
import os
import struct
from functools import lru_cache
from typing import Tuple, Union

from trainshed.replica.system import kernel, processes

Step = Union[Tuple[int, int], Tuple[int, int, str, str], str]

BIND, CONNECT = "bind", "connect"

_MACHINE = os.uname().machine
# The kernel's ID of the architecture and its call numbers, by machine. `_SHORT_MACHINES` contains the same
# for 32-bit programs on that machine.
_MACHINES = {
    "x86_64": (0xC000003E, {BIND: 49, CONNECT: 42, "socket": 41, "seccomp": 317}),
    "aarch64": (0xC00000B7, {BIND: 200, CONNECT: 203, "socket": 198, "seccomp": 277}),
}
_SHORT_MACHINES = {
    # socketcall is rejected: it takes its arguments from memory, which filters cannot read.
    "x86_64": (0x40000003, {BIND: 361, "socket": 359, "socketcall": 102}),
    "aarch64": (0x40000028, {BIND: 282, "socket": 281}),
}
# The system calls with a file mode, by architecture. An entry is (call number, number of the mode argument,
# number of the flags argument). A call with flags uses the mode only if the flags create a file. The last
# number is None for a call without such flags.
_MODES: "dict[int, tuple[tuple[int, int, int | None], ...]]" = {
    # open, creat, openat; chmod, fchmod, fchmodat; mknod, mknodat
    0xC000003E: (
        *((2, 2, 1), (85, 1, None), (257, 3, 2), (90, 1, None), (91, 1, None), (268, 2, None)),
        *((133, 1, None), (259, 2, None)),
    ),
    0xC00000B7: ((56, 3, 2), (52, 1, None), (53, 2, None), (33, 2, None)),
    0x40000003: (
        *((5, 2, 1), (8, 1, None), (295, 3, 2), (15, 1, None), (94, 1, None), (306, 2, None)),
        *((14, 1, None), (297, 2, None)),
    ),
    0x40000028: (
        *((5, 2, 1), (8, 1, None), (322, 3, 2), (15, 1, None), (94, 1, None), (333, 2, None)),
        *((14, 1, None), (324, 2, None)),
    ),
}
_OPENAT2, _FCHMODAT2 = 437, 452
"""These numbers are the same on every architecture. Filters cannot read openat2's mode, which is in
memory."""
_CREATES = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE. Without one of them, the mode of open has no effect."""
_SET_USER_ID = 0o4000
_X32 = 0x40000000
"""Calls of x32 programs have numbers from here on."""
_IO_URING = (425, 426, 427)
"""The calls setup, enter and register. Their numbers are the same on every architecture, like those of
Landlock and pidfds."""
_MPTCP, _SMC = 262, 43
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_BIND = 1
_PIDFD_GETFD = 438

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FAMILY, _AT_PROTOCOL = 0, 4, 16, 32


def number_of(call: str) -> "int | None":
    """Return this machine's number of a system call that the shim handles, or None if unsupported."""
    return _MACHINES[_MACHINE][1][call] if is_known() else None


def is_known() -> bool:
    return _MACHINE in _MACHINES


def install(*, connect: bool, set_user_id: bool = False) -> int:
    """Filter the calls of this process and all its descendants. Returns the file descriptor on which
    notifications arrive, or -1 on unsupported machines. Raises OSError. `connect`: the shim also handles
    connect. `set_user_id`: the program may set setuid bits."""
    if not is_known():
        return -1
    seccomp = _MACHINES[_MACHINE][1]["seccomp"]
    code = _code(connect, set_user_id)
    described = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
    try:
        # With the flag _WAIT_KILLABLE, only fatal signals interrupt a call. Without it, any signal would
        # interrupt the call, and the program would repeat it. Older kernels reject the flag.
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, flags, described)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, _NEW_LISTENER, described)
    if can_access_processes():
        _forbid_bind()
    return handle


@lru_cache(maxsize=None)
def _code(connect: bool, set_user_id: bool) -> "ctypes.Array[ctypes.c_char]":
    code = _assemble(_steps(_MACHINE, connect=connect, set_user_id=set_user_id))
    return ctypes.create_string_buffer(code, len(code))


def prepare() -> None:
    """Compute the data for `install` once, for all later forks of this process."""
    if is_known():
        for connect in (False, True):
            _code(connect, False)
            _code(connect, True)
        can_access_processes()


@lru_cache(maxsize=None)
def can_access_processes() -> bool:
    """Whether a process may access the memory and the file descriptors of another process of the same user. A
    supervisor needs this access. A security policy may forbid it in a way that this function does not test.
    """
    scope = processes.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope not in (b"", b"0", b"1"):
        return False
    read, write = os.pipe()
    try:
        own = kernel.process_handle(os.getpid())
        try:
            kernel.close_all([kernel.syscall(_PIDFD_GETFD, "pidfd_getfd", own, read, 0)])
        finally:
            kernel.close_all([own])
    except OSError:
        return False  # The kernel is old, or a policy forbids the access.
    finally:
        kernel.close_all([read, write])
    return True


def _forbid_bind() -> None:
    """Forbid any TCP bind of this process by Landlock, if the kernel supports it."""
    try:
        rules = struct.pack("QQ", 0, _LANDLOCK_BIND)
        handle = kernel.syscall(_LANDLOCK_CREATE, "landlock", rules, len(rules), 0)
        try:
            kernel.syscall(_LANDLOCK_RESTRICT, "landlock", handle, 0)
        finally:
            kernel.close_all([handle])
    except OSError:
        return  # The kernel has no Landlock for the network.


def _steps(machine: str, *, connect: bool, set_user_id: bool) -> "list[Step]":
    """Return the steps that decide about a call, in order. Names are jump targets."""
    architecture, numbers = _MACHINES[machine]
    short, short_numbers = _SHORT_MACHINES[machine]
    steps: "list[Step]" = [
        (_LOAD, _AT_ARCHITECTURE),
        (_IF_EQUAL, short, "short", ""),
        (_IF_EQUAL, architecture, "", "missing"),
        (_LOAD, _AT_NUMBER),
        (_IF_AT_LEAST, _X32, "missing", ""),
        (_IF_EQUAL, numbers[BIND], "ask", ""),
    ]
    if connect:
        steps.append((_IF_EQUAL, numbers[CONNECT], "ask", ""))
    steps += _common(numbers["socket"], () if set_user_id else _MODES[architecture])
    steps += ["short", (_LOAD, _AT_NUMBER), (_IF_EQUAL, short_numbers[BIND], "missing", "")]
    if "socketcall" in short_numbers:
        steps.append((_IF_EQUAL, short_numbers["socketcall"], "missing", ""))
    steps += _common(short_numbers["socket"], () if set_user_id else _MODES[short])
    for at in (1, 2, 3):
        flags = [(_LOAD, _argument(at - 1)), (_IF_ANY, _CREATES, "", "allow")]
        modes = [(_LOAD, _argument(at)), (_IF_ANY, _SET_USER_ID, "denied", "allow")]
        steps += ["creates %d" % at, *flags, "mode %d" % at, *modes]
    steps += [
        "socket",
        (_LOAD, _AT_FAMILY),
        (_IF_EQUAL, _SMC, "no family", ""),
        (_LOAD, _AT_PROTOCOL),
        (_IF_EQUAL, _MPTCP, "no protocol", "allow"),
    ]
    answers = {
        "ask": _ASK,
        "missing": _REFUSE | errno.ENOSYS,
        "denied": _REFUSE | errno.EPERM,
        "no family": _REFUSE | errno.EAFNOSUPPORT,
        "no protocol": _REFUSE | errno.EPROTONOSUPPORT,
        "allow": _ALLOW,
    }
    for name, answer in answers.items():
        steps += [name, (_RETURN, answer)]
    return steps


def _argument(number: int) -> int:
    """Return the offset of the lower half of a call's argument. Arguments are numbered from 0."""
    return 16 + 8 * number


def _common(socket_number: int, modes: "tuple[tuple[int, int, int | None], ...]") -> "list[Step]":
    steps: "list[Step]" = [(_IF_EQUAL, number, "missing", "") for number in _IO_URING]
    if modes:
        steps += [(_IF_EQUAL, _OPENAT2, "missing", ""), (_IF_EQUAL, _FCHMODAT2, "mode 2", "")]
    for call, at, flags in modes:
        label = "mode %d" if flags is None else "creates %d"
        steps.append((_IF_EQUAL, call, label % at, ""))
    steps.append((_IF_EQUAL, socket_number, "socket", "allow"))
    return steps


def _assemble(steps: "list[Step]") -> bytes:
    """Convert the steps to the kernel's format, in which jumps are distances. "" refers to the next step."""
    places: "dict[str, int]" = {}
    kept: "list[tuple[int, ...] | tuple[int, int, str, str]]" = []
    for step in steps:
        if isinstance(step, str):
            places[step] = len(kept)
        else:
            kept.append(step)
    code = b""
    for at, step in enumerate(kept):
        jumps = [places[str(name)] - at - 1 if name else 0 for name in step[2:]] or [0, 0]
        code += struct.pack("HBBI", step[0], jumps[0], jumps[1], step[1])
    return code
