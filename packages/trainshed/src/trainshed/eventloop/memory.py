"""Tunes garbage collection, and releases the memory that the start of a long-lived process left behind."""

import ctypes
import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 10, 10)
"""The default threshold of 700 new objects would cause two collections per submit. Reference counting frees
nearly all of these objects without a collection."""


def tune_memory() -> None:
    """Enable garbage collection, but exclude all existing objects, because loaded code is never garbage.
    Release unused memory of the startup to the operating system."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    trimming = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimming is not None:
        trimming(0)
