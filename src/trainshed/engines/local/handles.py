"""How many files the service may have open: one per live replica, so as many as the system lets it have.

Programs start with the limit that the service was started with: some cannot cope with handles above 1023.
"""

import contextlib
import resource

Limits = tuple[int, int]
"""Soft and hard, as the system has them."""

_ENOUGH = 1 << 16


def take_what_there_is() -> Limits:
    """Raise this process's limit as far as is allowed and useful; returns what it was."""
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return before


def give_back(limits: Limits) -> None:
    """Have the limit of before again."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def impose(process: int, limits: Limits) -> None:
    """Give another process, and all that it will start, these limits, where the system can do that."""
    if hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):  # It is dead.
            resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
