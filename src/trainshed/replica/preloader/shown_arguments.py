"""What others see of a process as its command line and environment (/proc/PID/cmdline, /proc/PID/environ).

They lie in the process's own memory, and the kernel is told where. Runs on Python 3.6.
"""

import ctypes
import mmap
import os
import struct

from trainshed.replica.system import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

_NO_FILE = 0xFFFFFFFF
# Numbers of /proc/PID/stat from its process's name on: start_code, end_code, start_stack, start_data,
# end_data, start_brk.
_STAT = (23, 24, 25, 42, 43, 44)


def show(argv: "Sequence[str]", environ: "dict[str, str]") -> None:
    """Have these seen from here on, if the kernel can do that."""
    arguments = b"".join(os.fsencode(each) + b"\0" for each in argv)
    variables = b"".join(os.fsencode("%s=%s" % pair) + b"\0" for pair in environ.items())
    try:
        # Not shared memory: others are shown nothing of that.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        area = mmap.mmap(-1, len(arguments) + len(variables) + 1, flags)
        area.write(arguments + variables)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        code, code_end, stack, data, data_end, brk = (int(fields[at]) for at in _STAT)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sbrk.restype = ctypes.c_void_p
        middle = start + len(arguments)
        end = middle + len(variables)
        places = (
            code,
            code_end,
            data,
            data_end,
            brk,
            libc.sbrk(0),
            stack,
            start,
            middle,
            middle,
            end,
        )
        described = struct.pack("11QQII", *places, 0, 0, _NO_FILE)
        kernel.set_memory_map(described)
    except (OSError, ValueError, IndexError, struct.error):
        return
    _shown.append(area)


def name_invocation(name: str) -> None:
    """Have the C library say that the program was started by this name, before what it says itself."""
    libc = ctypes.CDLL(None)
    for variable, value in (
        ("program_invocation_name", name),
        ("program_invocation_short_name", os.path.basename(name)),
    ):
        try:
            place = ctypes.c_char_p.in_dll(libc, variable)
        except ValueError:
            return  # It is another C library.
        place.value = os.fsencode(value)
        _shown.append(place)


_shown: "list[Any]" = []
"""Kept, since the kernel and the C library read it."""
