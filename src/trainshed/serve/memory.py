"""Keeps an idle service small."""

import ctypes
import gc


def settle() -> None:
    """Give back what importing and starting left behind, and spare what stays from the collector, so that its
    pages stay shared with forked children. Takes a few milliseconds; does nothing where the C library cannot."""
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
