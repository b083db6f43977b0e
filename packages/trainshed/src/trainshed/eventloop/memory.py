"""Tunes garbage collection, and releases the memory that the start of a long-lived process left behind."""

import ctypes
import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 10, 10)
"""The default of 700 young objects would cause two collections per submit, although nearly all of these
objects are freed by reference counting."""


def settle() -> None:
    """Turn the collector on, but exclude all existing objects, since loaded code is never garbage. Return the
    memory of imports and startup to the system."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    trimming = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimming is not None:
        trimming(0)
