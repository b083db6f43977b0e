"""Writes the file of compiled modules (`compiled`), as a program of its own: it reads what to write from its
standard input.

It leaves out docstrings, which a service does not need: they take 1.5 MB of its memory. Assertions stay;
under Python's `-OO` they would not. The program is run by its path and imports nothing of ours, so it repeats
the few definitions that it shares with `compiled`.
"""

import contextlib
import dis
import marshal
import os
import struct
import sys
from importlib.util import MAGIC_NUMBER
from itertools import pairwise
from types import CodeType
from typing import Any, BinaryIO

_Identity = tuple[int, int, int]
_Entry = tuple[str, bool, _Identity, int, int]
"""See `compiled`."""
_NUMBER = 8
_HEAD = 16
"""Bytes of the head of a compiled file of Python's: a magic number, flags that say how a changed source is
recognised, the source's time (seconds) and its size."""
_WITH_DOCSTRINGS = ("trainshed.cli", "trainshed.serve", "click")
"""Packages whose docstrings stay, since the help of commands is made from them."""
_FUNCTION = 0x1
"""The flag of code objects whose first constant is the docstring, if that is a text."""
_WITH_CONSTANT = frozenset(dis.hasconst)
_STORE_NAME = dis.opmap["STORE_NAME"]


def write(
    file: BinaryIO,
    key: str,
    missing: list[tuple[str, str, str, bool]],
    fresh: dict[str, _Entry],
    kept: bytes,
) -> None:
    """Write the file. `missing` has each new module's name, source, compiled file, and whether it is a
    package; `fresh` has the entries to copy from `kept`, the bytes of the present file. Raises OSError."""
    entries: dict[str, _Entry] = {}
    for name, origin, cached, is_package in missing:
        if (found := _compiled(name, origin, cached)) is not None:
            identity, code = found
            entries[name] = (origin, is_package, identity, file.tell(), len(code))
            file.write(code)
    for name, entry in fresh.items():
        code = kept[entry[3] : entry[3] + entry[4]]
        if len(code) == entry[4]:
            entries[name] = (*entry[:3], file.tell(), entry[4])
            file.write(code)
    begin = file.tell()
    file.write(marshal.dumps((key, entries)))
    file.write(begin.to_bytes(_NUMBER, "little"))
    file.flush()
    # Readable like Python's own compiled files, whatever mode a service gives its files.
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def _compiled(name: str, origin: str, cached: str) -> tuple[_Identity, bytes] | None:
    """Returns the source's identity and the module's code, b"" for an extension; None if the compiled file
    does not belong to the source."""
    code = b""
    try:
        found = os.stat(origin)
        if cached:
            with open(cached, "rb") as compiled:
                head, code = compiled.read(_HEAD), compiled.read()
            # Flags 0: the source is compared by time and size, not by a hash.
            expected = struct.pack(
                "<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF
            )
            if head != MAGIC_NUMBER + expected:
                return None
    except OSError:
        return None
    if code and not name.startswith(_WITH_DOCSTRINGS):
        code = marshal.dumps(without_docstrings(marshal.loads(code)))
    return identity(found), code


def identity(found: os.stat_result) -> _Identity:
    """What tells a file from others: inode, time of change (ns) and size."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def without_docstrings(code: CodeType) -> CodeType:
    """Returns the code without its docstring, and without those of the functions and classes in it. A
    docstring stays if the code also uses its text as a constant."""
    constants: list[Any] = [
        without_docstrings(each) if isinstance(each, CodeType) else each for each in code.co_consts
    ]
    place = _docstring(code)
    if place is not None and isinstance(constants[place], str):
        constants[place] = None
    return code.replace(co_consts=tuple(constants))


def _docstring(code: CodeType) -> int | None:
    """Returns the index of the constant that serves as docstring and as nothing else; None if there is
    none."""
    steps = list(zip(code.co_code[::2], code.co_code[1::2], strict=True))
    used = [constant for step, constant in steps if step in _WITH_CONSTANT]
    if code.co_flags & _FUNCTION:
        return 0 if code.co_consts and 0 not in used and code.co_name[:1] != "<" else None
    for (step, constant), (following, name) in pairwise(steps):
        if step in _WITH_CONSTANT and following == _STORE_NAME and code.co_names[name] == "__doc__":
            return constant if used.count(constant) == 1 else None
    return None


def main() -> None:
    """Write the file that standard input describes. Raises SystemExit if it cannot be written."""
    path, expected, key, missing, fresh = marshal.loads(sys.stdin.buffer.read())
    with contextlib.suppress(OSError):
        os.nice(10)  # The service has just begun.
    kept = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        # Another service may have replaced the file.
        if identity(os.fstat(file.fileno())) == expected:
            kept = file.read()
    draft = f"{path}.{os.getpid()}.new"
    try:
        with open(draft, "wb") as file:
            write(file, key, missing, fresh, kept)
        os.replace(draft, path)
    except OSError as failure:
        raise SystemExit(str(failure)) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


if __name__ == "__main__":
    main()
