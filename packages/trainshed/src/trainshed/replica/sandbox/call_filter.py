"""Filters a replica's system calls: the shim is asked about some, and those that would bypass the question
are refused.

The shim is asked about bind and connect (`socket_calls`). Some calls are refused as by a kernel without them,
for which libraries are prepared: io_uring, whose requests are no system calls; x32 numbers; bind by the calls
of 32-bit programs, which otherwise run; MPTCP and SMC sockets, which can take TCP ports unseen by Landlock.
Landlock, if the kernel has it for the network (Linux 6.7), then forbids every TCP bind that the kernel would
make itself, so that changing an argument after the check is useless. Runs on Python 3.6.
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
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FAMILY, _AT_PROTOCOL = 0, 4, 16, 32


def number_of(call: str) -> "int | None":
    """Return this machine's number of a system call that the shim is asked about; None on unsupported
    machines."""
    return _MACHINES[_MACHINE][1][call] if is_known() else None


def is_known() -> bool:
    """Whether this machine is supported."""
    return _MACHINE in _MACHINES


def install(*, connect: bool) -> int:
    """Filter the calls of this process and all its descendants. `connect`: ask about that call as well.
    Returns the handle on which questions arrive; -1 on unsupported machines. Raises OSError."""
    if not is_known():
        return -1
    seccomp = _MACHINES[_MACHINE][1]["seccomp"]
    code = _code(connect)
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
def _code(connect: bool) -> "ctypes.Array[ctypes.c_char]":
    code = _assembled(_steps(_MACHINE, connect=connect))
    return ctypes.create_string_buffer(code, len(code))


def prepare() -> None:
    """Prepare what `install` needs, for all processes that this one will fork."""
    if is_known():
        _code(False)
        _code(True)
        can_take_part()


@lru_cache(maxsize=None)
def can_take_part() -> bool:
    """Whether a supervisor of the same user may duplicate another process's handle, as far as that can be
    known beforehand."""
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
    """Forbid the kernel any TCP bind of this process, if it supports that."""
    try:
        rules = struct.pack("QQ", 0, _LANDLOCK_BIND)
        handle = kernel.syscall(_LANDLOCK_CREATE, "landlock", rules, len(rules), 0)
        try:
            kernel.syscall(_LANDLOCK_RESTRICT, "landlock", handle, 0)
        finally:
            kernel.close_all([handle])
    except OSError:
        return  # This kernel does not support it.


def _steps(machine: str, *, connect: bool) -> "list[Step]":
    """Return the steps by which a call is judged, in order; names are jump targets."""
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
    steps += _common(numbers["socket"])
    steps += ["short", (_LOAD, _AT_NUMBER), (_IF_EQUAL, short_numbers[BIND], "missing", "")]
    if "socketcall" in short_numbers:
        steps.append((_IF_EQUAL, short_numbers["socketcall"], "missing", ""))
    steps += _common(short_numbers["socket"])
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
        "no family": _REFUSE | errno.EAFNOSUPPORT,
        "no protocol": _REFUSE | errno.EPROTONOSUPPORT,
        "allow": _ALLOW,
    }
    for name, answer in answers.items():
        steps += [name, (_RETURN, answer)]
    return steps


def _common(socket_number: int) -> "list[Step]":
    steps: "list[Step]" = [(_IF_EQUAL, number, "missing", "") for number in _IO_URING]
    steps.append((_IF_EQUAL, socket_number, "socket", "allow"))
    return steps


def _assembled(steps: "list[Step]") -> bytes:
    """Assemble the steps to the kernel's form, in which jumps are distances; "" is the next step."""
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
