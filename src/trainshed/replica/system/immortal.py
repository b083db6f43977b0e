"""Objects whose references nobody counts, so that forks of a process share the pages that they lie in.

Who calls a function writes to the count of all that it touches, and the first write to a page in a fork
copies it. Python 3.12 and later have objects whose counts are not written ("immortal", PEP 683) but no call
to make one. Here code, modules and constants that a process has loaded are made so before it forks.
"""

import gc
import sys
import types

_FIRST, _LAST = (3, 12), (3, 13)
"""Pythons of which it is known how they mark them: all bits of the lower half of the count are set."""
_MARK = 0xFF
_MARKED_BYTES = 4
_UNCOUNTED = 2**31
"""Larger counts are those of immortal objects."""


def make_immortal() -> int:
    """Mark the classes, functions, modules, texts and collections that there are, and return how many; 0
    where it is not known how. None of them is freed any more: what shall be closed by the end of its last
    reference must not be in one. Frozen objects (`gc.freeze`) are marked as well, and stay frozen."""
    if not _is_possible():
        return 0
    from ctypes import memset

    lasting = _lasting_kinds()
    made = 0
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # What is frozen is not listed.
    # Their counts tell which were looked at. A set of them would leave freed memory behind, which forks copy.
    rest = gc.get_objects()
    while rest:
        one = rest.pop()
        if sys.getrefcount(one) < _UNCOUNTED and (type(one) in lasting or isinstance(one, type)):
            memset(id(one), _MARK, _MARKED_BYTES)
            made += 1
            rest.extend(gc.get_referents(one))
    if is_frozen:
        gc.freeze()
    return made


def _is_possible() -> bool:
    if not (sys.implementation.name == "cpython" and _FIRST <= sys.version_info[:2] <= _LAST):
        return False
    from ctypes import string_at

    # Not built for debugging, nor without the global lock: these count elsewhere as well.
    is_usual = not sys.abiflags and sys.byteorder == "little" and sys.maxsize > 2**32
    return is_usual and string_at(id(None), _MARKED_BYTES) == bytes([_MARK]) * _MARKED_BYTES


def _lasting_kinds() -> "frozenset[type]":
    """Those of which no object does anything when it ends, as files, sockets and generators do."""
    return frozenset(
        {
            *(str, bytes, int, float, complex, tuple, frozenset, dict, set, list),
            *(property, staticmethod, classmethod, types.MappingProxyType),
            *(types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.ModuleType),
            *(types.CellType, types.MethodType, types.MethodDescriptorType),
            *(types.GetSetDescriptorType, types.MemberDescriptorType),
            *(types.ClassMethodDescriptorType, types.WrapperDescriptorType),
        }
    )
