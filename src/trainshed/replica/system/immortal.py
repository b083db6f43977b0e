"""Makes objects immortal, whose references are not counted, so that forks of a process share the pages that
hold them.

A call writes to the reference counts of all objects that it touches, and the first write to a page in a fork
copies it. Python 3.12 and later have objects whose counts are not written ("immortal", PEP 683) but no call
to make one. This module marks code, modules and constants that a process has loaded before it forks.
"""

import gc
import sys
import types

_FIRST, _LAST = (3, 12), (3, 13)
"""Python versions whose marking is known: all bits of the lower half of the count are set."""
_MARK = 0xFF
_MARKED_BYTES = 4
_UNCOUNTED = 2**31
"""Larger counts are those of immortal objects."""


def make_immortal() -> int:
    """Mark the existing classes, functions, modules, texts and collections as immortal; return how many, 0 on
    a Python whose marking is not known. They are never freed, so none may refer to an object that the loss of
    its last reference is to close. Frozen objects (`gc.freeze`) are marked as well, and stay frozen."""
    if not _is_possible():
        return 0
    from ctypes import memset

    lasting = _lasting_kinds()
    made = 0
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # Frozen objects are not listed.
    # Their counts show which were visited. A set of them would leave freed memory behind, which forks copy.
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

    # Debug builds and those without the global lock count in other fields as well.
    is_usual = not sys.abiflags and sys.byteorder == "little" and sys.maxsize > 2**32
    return is_usual and string_at(id(None), _MARKED_BYTES) == bytes([_MARK]) * _MARKED_BYTES


def _lasting_kinds() -> "frozenset[type]":
    """Return the types whose objects do nothing when they are freed, unlike files, sockets and generators."""
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
