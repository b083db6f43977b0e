"""Builds process 1 of a replica's namespace as a program of 300 bytes of machine code that only reaps.

A guardian whose program runs has only that left to do, and takes two megabytes of Python for it. It becomes
this program instead:

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NAME, "ts-guardian");
    for (;;) {
        struct { int process, status; } died;
        while ((died.process = wait4(-1, &died.status, WNOHANG, NULL)) > 0)
            write(1, &died, sizeof died);
        rt_sigtimedwait(&(sigset_t){SIGCHLD}, NULL, NULL, 8);
    }

It needs neither a compiler nor a file on the disk: it lies in sealed memory that all replicas of a zygote
share. Only for Linux on the machines below. Runs on Python 3.6.
"""

import os
import signal
import struct

from trainshed.replica.system import kernel

REPORT = struct.Struct("=ii")
"""What the program writes to its standard output for each process that it has reaped: number in its
namespace, status as of wait."""

_NAME = "ts-guardian"

# The data behind the instructions: SIGCHLD as a set of signals, then the name for PR_SET_NAME.
_DATA = struct.pack("<Q", 1 << (17 - 1)) + _NAME.encode("ascii") + b"\0"

_X86_64 = bytes.fromhex(
    "6a01 5f"  # push 1; pop rdi
    "6a09 5e"  # push 9; pop rsi
    "b89d000000 0f05"  # mov eax, prctl; syscall
    "6a04 5f"  # push 4; pop rdi
    "31f6"  # xor esi, esi
    "b89d000000 0f05"  # mov eax, prctl; syscall
    "6a0f 5f"  # push 15; pop rdi
    "488d355f000000"  # lea rsi, [rip + name]
    "b89d000000 0f05"  # mov eax, prctl; syscall
    "4883ec10"  # sub rsp, 16
    "48c7c7ffffffff"  # next: mov rdi, -1
    "488d742404"  # lea rsi, [rsp + 4]
    "6a01 5a"  # push WNOHANG; pop rdx
    "4531d2"  # xor r10d, r10d
    "b83d000000 0f05"  # mov eax, wait4; syscall
    "85c0 7e17"  # test eax, eax; jle sleep
    "890424"  # mov [rsp], eax
    "6a01 5f"  # push 1; pop rdi
    "4889e6"  # mov rsi, rsp
    "ba08000000"  # mov edx, 8
    "b801000000 0f05"  # mov eax, write; syscall
    "ebcc"  # jmp next
    "488d3d11000000"  # sleep: lea rdi, [rip + set]
    "31f6"  # xor esi, esi
    "31d2"  # xor edx, edx
    "6a08 415a"  # push 8; pop r10
    "b880000000 0f05"  # mov eax, rt_sigtimedwait; syscall
    "ebb4"  # jmp next
)

_AARCH64 = b"".join(
    struct.pack("<I", word)
    for word in (
        0xD2800020,  # mov x0, 1
        0xD2800121,  # mov x1, 9
        0xD28014E8,  # mov x8, prctl
        0xD4000001,  # svc 0
        0xD2800080,  # mov x0, 4
        0xD2800001,  # mov x1, 0
        0xD4000001,  # svc 0
        0xD28001E0,  # mov x0, 15
        0x10000361,  # adr x1, name
        0xD4000001,  # svc 0
        0xD10043FF,  # sub sp, sp, 16
        0x92800000,  # next: mov x0, -1
        0x910013E1,  # add x1, sp, 4
        0xD2800022,  # mov x2, WNOHANG
        0xD2800003,  # mov x3, 0
        0xD2802088,  # mov x8, wait4
        0xD4000001,  # svc 0
        0x7100001F,  # cmp w0, 0
        0x5400010D,  # b.le sleep
        0xB90003E0,  # str w0, [sp]
        0xD2800020,  # mov x0, 1
        0x910003E1,  # mov x1, sp
        0xD2800102,  # mov x2, 8
        0xD2800808,  # mov x8, write
        0xD4000001,  # svc 0
        0x17FFFFF2,  # b next
        0x100000E0,  # sleep: adr x0, set
        0xD2800001,  # mov x1, 0
        0xD2800002,  # mov x2, 0
        0xD2800103,  # mov x3, 8
        0xD2801128,  # mov x8, rt_sigtimedwait
        0xD4000001,  # svc 0
        0x17FFFFEB,  # b next
    )
)

#: (machine number in ELF, instructions) by machine.
_MACHINES = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}

_BASE = 0x400000
"""Address at which it is loaded."""
_EXECUTABLE, _WRITABLE, _READABLE = 1, 2, 4
_LOAD, _STACK = 1, 0x6474E551

_made: "list[int]" = []
"""Handle of the program's file, once it is made."""


def program(machine: str) -> bytes:
    """Return the whole program in ELF format. Raises KeyError if the machine is not known."""
    number, code = _MACHINES[machine]
    headers = 64 + 2 * 56
    size = headers + len(code) + len(_DATA)
    entry = _BASE + headers
    return b"".join(
        (
            struct.pack("<4sBBB9x", b"\x7fELF", 2, 1, 1),
            struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 2, 64, 0, 0),
            struct.pack(
                "<IIQQQQQQ", _LOAD, _READABLE | _EXECUTABLE, 0, _BASE, _BASE, size, size, 0x1000
            ),
            struct.pack("<IIQQQQQQ", _STACK, _READABLE | _WRITABLE, 0, 0, 0, 0, 0, 16),
            code,
            _DATA,
        )
    )


def prepare() -> None:
    """Make the program's file for this process and its forks; without effect where that is not possible."""
    if not kernel.LINUX or os.uname().machine not in _MACHINES:
        return
    try:
        handle = kernel.executable_in_memory(_NAME, program(os.uname().machine))
    except (AttributeError, OSError):
        return  # The C library or the kernel lacks such files, or a policy forbids them.
    _made.append(handle)


def file() -> "list[int]":
    """Return the handle of the program's file, which a process that may `become` it must not close; [] = none
    could be made."""
    return _made


def become(reports: int) -> None:
    """Turn this process into the reaper. `reports`: handle that it writes its reports to. Other handles stay
    open if they are inheritable. Does not return, unless it raises OSError; the process then continues as it
    was."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    os.dup2(reports, 1)
    try:
        os.execve(_made[0], [_NAME], {})
    finally:
        os.dup2(2, 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
