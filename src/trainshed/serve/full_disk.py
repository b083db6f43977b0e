"""Tells a full disk from other failures, however it was wrapped on its way, and says what to do."""

import errno
import sqlite3
from pathlib import Path


def is_behind(failure: BaseException) -> bool:
    """Whether a full disk is what it came from."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return True
        cause = cause.__cause__
    return False


def advice(data: Path) -> str:
    """One line."""
    return (
        f"The disk that holds the data directory {data} is full, so nothing can be stored there. "
        "Make room on it and start again; programs that run wait for room as well and lose nothing."
    )
