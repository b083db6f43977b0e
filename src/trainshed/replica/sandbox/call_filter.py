"""The filter of a replica's system calls: which the shim is asked about, and which would go round the
question.

A bind and a connect are asked about (`socket_calls`). Refused as by a kernel that does not have them, which
is what libraries are prepared for: io_uring, whose requests are no system calls of the program's; x32
numbers; a bind by the calls of 32-bit programs, which otherwise run; MPTCP and SMC sockets, over which TCP
ports can be had that Landlock does not look at. Landlock, where the kernel has it for the network (Linux
6.7), then forbids each bind of TCP that the kernel would make itself: no argument that changes after it was
looked at gets past that. Runs on Python 3.6.
"""

import ctypes
import errno
import os
import struct

from trainshed.replica.system import kernel, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Step = Union[tuple[int, int], tuple[int, int, str, str], str]

BIND, CONNECT = "bind", "connect"

# machine: the kernel's name of the architecture, its numbers, and the same of 32-bit programs on it
_MACHINES = {
    "x86_64": (0xC000003E, {BIND: 49, CONNECT: 42, "socket": 41, "seccomp": 317}),
    "aarch64": (0xC00000B7, {BIND: 200, CONNECT: 203, "socket": 198, "seccomp": 277}),
}
_SHORT_MACHINES = {
    # socketcall takes its arguments from memory, where no filter sees them.
    "x86_64": (0x40000003, {BIND: 361, "socket": 359, "socketcall": 102}),
    "aarch64": (0x40000028, {BIND: 282, "socket": 281}),
}
_X32 = 0x40000000
"""Numbers from here on are those of x32 programs."""
_IO_URING = (425, 426, 427)
"""Setup, enter and register, by the same numbers everywhere; so are those of Landlock and of pidfds."""
_MPTCP, _SMC = 262, 43
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_OF_NETWORK, _LANDLOCK_BIND = 4, 1
_PIDFD_GETFD = 438

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FAMILY, _AT_PROTOCOL = 0, 4, 16, 32


def number_of(call: str) -> "int | None":
    """This machine's number of a system call that is asked about; None on machines that are not known
    here."""
    return _MACHINES[os.uname().machine][1][call] if is_known() else None


def is_known() -> bool:
    """Whether there can be a filter on this machine."""
    return kernel.LINUX and os.uname().machine in _MACHINES


def install(*, connect: bool) -> int:
    """Filter the calls of this process and all its descendants; `connect`: be asked about that as well.
    Returns the handle that is asked by; -1 on machines whose numbers are not known here. Raises OSError."""
    if not is_known():
        return -1
    seccomp = _MACHINES[os.uname().machine][1]["seccomp"]
    code = _code(connect)
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    try:
        # A signal in between would have the call made twice; older kernels cannot wait otherwise.
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, flags, described)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        handle = kernel.syscall(seccomp, "seccomp", _SET_MODE_FILTER, _NEW_LISTENER, described)
    if can_take_part():
        _forbid_bind()
    return handle


_codes: "dict[bool, bytes]" = {}
"""What was made of them, by `connect`."""


def _code(connect: bool) -> bytes:
    if connect not in _codes:
        _codes[connect] = _assembled(_steps(os.uname().machine, connect=connect))
    return _codes[connect]


def prepare() -> None:
    """Have what `install` needs at hand in all processes that this one will fork."""
    if is_known():
        _code(False)
        _code(True)


def can_take_part() -> bool:
    """Whether a supervisor of the same user may take a handle of another process's, as far as can be known
    beforehand."""
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
        return False  # An old kernel, or a policy around us.
    finally:
        kernel.close_all([read, write])
    return True


def _forbid_bind() -> None:
    """Have the kernel make no bind of TCP itself, where it can be told so."""
    try:
        if kernel.syscall(_LANDLOCK_CREATE, "landlock", 0, 0, 1) < _LANDLOCK_OF_NETWORK:
            return
        rules = struct.pack("QQ", 0, _LANDLOCK_BIND)
        handle = kernel.syscall(_LANDLOCK_CREATE, "landlock", rules, len(rules), 0)
        try:
            kernel.syscall(_LANDLOCK_RESTRICT, "landlock", handle, 0)
        finally:
            kernel.close_all([handle])
    except OSError:
        return  # Not in this kernel.


def _steps(machine: str, *, connect: bool) -> "list[Step]":
    """What is done with a call, in order; names are places to go to."""
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
    """As the kernel takes it: jumps by distance, and "" for the step that follows."""
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
