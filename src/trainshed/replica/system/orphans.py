"""Forks orphans: processes whose parent ends right after the fork, so that the first process of their
namespace adopts them.

Two forks do that, but copy this process twice, and one copy only ends. On machines whose instructions are
known here, the process in between runs in the caller's own memory instead, as after `vfork`, while the caller
waits:

    child = vfork();
    if (child == 0 && (child = fork()) != 0)
        exit_group(child < 0);
    return child;

The C library's `fork` runs the handlers of C libraries, and this module runs Python's, as `os.fork` does.
Only for processes in which no other library has fork handlers, since those that come before a fork would run
in the process in between. Runs on Python 3.6.
"""

import ctypes
import mmap
import os
import sys

from trainshed.replica.system import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_X86_64 = bytes.fromhex(
    "53"  # push rbx
    "4889fb"  # mov rbx, rdi
    "b83a000000 0f05"  # mov eax, vfork; syscall
    "85c0 7512"  # test eax, eax; jnz done
    "ffd3"  # call rbx
    "85c0 740c"  # test eax, eax; jz done
    "89c7 c1ef1f"  # mov edi, eax; shr edi, 31
    "b8e7000000 0f05"  # mov eax, exit_group; syscall
    "5b c3"  # done: pop rbx; ret
)

_CODE = {"x86_64": _X86_64}
_kept: "list[mmap.mmap]" = []
"""Keeps the memory that holds the code, as it may be called at any time."""


def forker() -> "Callable[[], int]":
    """Return a function that forks an orphan: it returns 0 in the orphan and another number in the caller,
    and raises OSError. Call this before the function is needed."""
    try:
        return _in_one_copy()
    except (KeyError, AttributeError, OSError):
        return in_two_copies  # Another machine, Python 3.6, or a policy against code in memory.


def in_two_copies() -> int:
    """Fork an orphan as the function of `forker` does; works in any process."""
    child = os.fork()
    if child == 0 and os.fork():
        os._exit(0)
    return child


def _in_one_copy() -> "Callable[[], int]":
    code = _CODE[os.uname().machine]
    if not kernel.LINUX or sys.maxsize < 1 << 32:
        raise KeyError  # A 32-bit Python on such a machine.
    api = ctypes.pythonapi
    before, in_parent, in_child = (
        api.PyOS_BeforeFork,
        api.PyOS_AfterFork_Parent,
        api.PyOS_AfterFork_Child,
    )
    for each in (before, in_parent, in_child):
        each.restype = None
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(code)
    _kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    kernel.make_executable(address, mmap.PAGESIZE)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    fork = ctypes.cast(ctypes.CDLL(None).fork, ctypes.c_void_p)

    def forked() -> int:
        before()
        child = call(fork)
        if child == 0:
            in_child()
        else:
            in_parent()
        if child < 0:
            raise OSError(-child, os.strerror(-child))
        return child

    return forked
