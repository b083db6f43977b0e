"""Filters a replica's system calls: the kernel notifies the shim of some calls, and rejects others that would
bypass it.

The shim handles bind and connect (`socket_calls`). Some calls fail as on a kernel without them, which
libraries support:
io_uring, whose requests are not system calls; x32 numbers; bind by the calls of 32-bit programs, which
otherwise run; MPTCP and SMC sockets, whose TCP ports Landlock does not see. Calls that would set a file's
setuid bit are rejected, except for programs of an image: a program's files in buckets belong to the service's
user. Landlock, if the kernel has it for the network (Linux 6.7), then forbids every TCP bind by the kernel
itself, so that changing an argument after the check is useless (TOCTOU). Runs on Python 3.6.
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
# By machine: the kernel's id of the architecture, its call numbers, and both for 32-bit programs on it.
_MACHINES = {
    "x86_64": (0xC000003E, {BIND: 49, CONNECT: 42, "socket": 41, "seccomp": 317}),
    "aarch64": (0xC00000B7, {BIND: 200, CONNECT: 203, "socket": 198, "seccomp": 277}),
}
_SHORT_MACHINES = {
    # socketcall takes its arguments from memory, which filters cannot read.
    "x86_64": (0x40000003, {BIND: 361, "socket": 359, "socketcall": 102}),
    "aarch64": (0x40000028, {BIND: 282, "socket": 281}),
}
# By architecture: calls with the mode of a file, the number of that argument, and the number of the argument
# with the flags by which files are made, if any.
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
"""By the same numbers everywhere. The first has its mode in memory, which filters cannot read."""
_CREATES = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE: without them a mode means nothing."""
_SET_USER_ID = 0o4000
_X32 = 0x40000000
"""Numbers from here on are those of x32 programs."""
_IO_URING = (425, 426, 427)
"""Setup, enter and register, by the same numbers everywhere; so are those of Landlock and of pidfds."""
_MPTCP, _SMC = 262, 43
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_BIND = 1
_PIDFD_GETFD = 438

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FAMILY, _AT_PROTOCOL = 0, 4, 16, 32


def number_of(call: str) -> "int | None":
    """Return this machine's number of a system call that the shim handles; None on unsupported machines."""
    return _MACHINES[_MACHINE][1][call] if is_known() else None


def is_known() -> bool:
    return _MACHINE in _MACHINES


def install(*, connect: bool, set_user_id: bool = False) -> int:
    """Filter the calls of this process and all its descendants. Returns the handle on which notifications
    arrive; -1 on unsupported machines. Raises OSError. `connect`: include that call. `set_user_id`: allow
    that bit of files."""
    if not is_known():
        return -1
    seccomp = _MACHINES[_MACHINE][1]["seccomp"]
    code = _code(connect, set_user_id)
    described = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
    try:
        # Otherwise a signal would repeat the call; older kernels do not have this flag.
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, flags, described)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, _NEW_LISTENER, described)
    if can_take_part():
        _forbid_bind()
    return handle


@lru_cache(maxsize=None)
def _code(connect: bool, set_user_id: bool) -> "ctypes.Array[ctypes.c_char]":
    code = _assemble(_steps(_MACHINE, connect=connect, set_user_id=set_user_id))
    return ctypes.create_string_buffer(code, len(code))


def prepare() -> None:
    """Prepare the data for `install`, for all future forks of this process."""
    if is_known():
        for connect in (False, True):
            _code(connect, False)
            _code(connect, True)
        can_take_part()


@lru_cache(maxsize=None)
def can_take_part() -> bool:
    """Whether a supervisor of the same user may duplicate another process's handle, as far as that is
    known."""
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
        return False  # The kernel is old, or a security policy forbids it.
    finally:
        kernel.close_all([read, write])
    return True


def _forbid_bind() -> None:
    """Forbid any TCP bind of this process by the kernel, if it supports that."""
    try:
        rules = struct.pack("QQ", 0, _LANDLOCK_BIND)
        handle = kernel.syscall(_LANDLOCK_CREATE, "landlock", rules, len(rules), 0)
        try:
            kernel.syscall(_LANDLOCK_RESTRICT, "landlock", handle, 0)
        finally:
            kernel.close_all([handle])
    except OSError:
        return  # This kernel does not support it.


def _steps(machine: str, *, connect: bool, set_user_id: bool) -> "list[Step]":
    """Return the steps that decide about a call, in order; names are jump targets."""
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
    """Return the offset of the lower half of a call's argument, from 0 on."""
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
    """Assemble the steps to the kernel's format, in which jumps are distances; "" is the next step."""
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
