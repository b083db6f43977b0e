"""Sets how a service uses Python's cycle collector."""

import gc

_THRESHOLDS = (20_000, 10, 10)
"""With the default, 700, it would search the young objects twice for each submit, although nearly all of
these are freed without it."""


def begin() -> None:
    """Turn the collector on, and exempt all current objects: what was loaded stays, and need not be searched
    again and again."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
