"""Replaces what others see as a process's command line and environment (/proc/PID/cmdline,
/proc/PID/environ).

Both lie in the process's own memory, and the kernel is told where. Runs on Python 3.6.
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
    """Show these arguments and variables from here on, if the kernel supports that."""
    arguments = b"".join(os.fsencode(each) + b"\0" for each in argv)
    variables = b"".join(os.fsencode("%s=%s" % pair) + b"\0" for pair in environ.items())
    try:
        # Private memory, because the kernel shows others nothing of shared memory.
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
    _own(argv, list(environ.items()), middle)


def find() -> None:
    """Find where the interpreter keeps its original arguments (Py_GetArgcArgv). Called before forks, because
    it searches all of the interpreter's variables."""
    count, place = ctypes.c_int(), ctypes.c_void_p()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(place))
    try:
        inside = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            areas = [line.split(None, 2) for line in file]
    except (OSError, ValueError):
        return
    end = inside
    for addresses, rights, _ in areas:
        first, last = (int(address, 16) for address in addresses.split("-"))
        # Zero-initialised variables have an area of their own, behind the others.
        if (first <= inside < last or first == end > inside) and rights.startswith("rw"):
            end = last
            at = ctypes.string_at(first, last - first).find(
                struct.pack("QQ", count.value, place.value or 0)
            )
            if at >= 0:
                _found.append(first + at)
                return


_found: "list[int]" = []
"""The address of their number and, behind it, that of their list, if it is known."""


def _own(argv: "Sequence[str]", variables: "list[tuple[str, str]]", place: int) -> None:
    """Point the C library and the interpreter to the shown memory, as in a new process, because libraries
    that change what is shown look there. `place`: the address of the first variable."""
    if not _found:
        return
    places: "list[int]" = []
    for name, value in variables:
        places.append(place)
        place += len(os.fsencode("%s=%s" % (name, value))) + 1
    environ = (ctypes.c_void_p * (len(places) + 1))(*places, None)
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(environ)
    _shown.append(environ)
    # Allocated so that the interpreter can free it at its end.
    decode, allocate = ctypes.pythonapi.Py_DecodeLocale, ctypes.pythonapi.PyMem_RawMalloc
    decode.restype = allocate.restype = ctypes.c_void_p
    texts = [decode(os.fsencode(each), None) for each in argv]
    size = struct.calcsize("P") * len(texts)
    listed = allocate(ctypes.c_size_t(size))
    ctypes.memmove(listed, struct.pack("%dP" % len(texts), *texts), size)
    ctypes.memmove(_found[0], struct.pack("QQ", len(texts), listed), 16)


def name_invocation(name: str) -> None:
    """Set the program name that the C library puts before its own messages."""
    libc = ctypes.CDLL(None)
    for variable, value in (
        ("program_invocation_name", name),
        ("program_invocation_short_name", os.path.basename(name)),
    ):
        try:
            place = ctypes.c_char_p.in_dll(libc, variable)
        except ValueError:
            return  # This is another C library.
        place.value = os.fsencode(value)
        _shown.append(place)


_shown: "list[Any]" = []
"""Kept, since the kernel and the C library read it."""
