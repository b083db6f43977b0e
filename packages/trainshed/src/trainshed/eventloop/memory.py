"""Releases the memory that the start of a long-lived process leaves behind."""

import ctypes
import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 10, 10)
"""With the default, 700, the collector would search the young objects twice for each submit, although nearly
all of these are freed without it."""


def settle() -> None:
    """Turn the collector on, without the objects that are there: what was loaded stays, and need not be
    searched again and again. Return the memory that importing and starting left behind."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    trimming = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimming is not None:
        trimming(0)
