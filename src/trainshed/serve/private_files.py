"""Closes a data directory and the secrets in it to other users, when a service starts, and says what was
open."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SECRETS: Final = (
    *("owner.token", "tokens.json", "sessions.json", "credentials.json", "boto.cfg"),
    *("service.json", "jobs.key", "secrets.key", "trainshed.db", "trainshed.db-wal"),
    *("trainshed-rescued.db", "tls/*.key", "tls/storage-relay.pem"),
    "engines/*/authority/*.key",
)
"""Files of a data directory that only the service's own user may read, as patterns."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Exposed(Exception):
    """Other users can read a secret or replace it, and this one cannot change that. The message says what to
    do."""


def close_to_others(data: Path) -> Iterator[str]:
    """Close what is open, and yield what that was, for people. Raises Exposed."""
    directory = data.stat()
    if directory.st_mode & _OTHERS_WRITE:
        if _may_change(directory):
            data.chmod(stat.S_IMODE(directory.st_mode) & ~_OTHERS_WRITE)
            yield (
                f"other users could write to {data} (mode {_mode(directory)}), and so replace what is in it. "
                "It is closed now; look at whose its files are: ls -l"
            )
        elif directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
            raise Exposed(
                f"Every user can write to the data directory {data} (mode {_mode(directory)}), and so "
                f"replace its secrets. As its owner: chmod go-w {data}. Or choose another one with --data."
            )
    opened: list[str] = []
    for path in sorted(path for pattern in SECRETS for path in data.glob(pattern)):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue  # Of a service that just ends.
        if found.st_uid not in (os.geteuid(), 0, directory.st_uid):
            raise Exposed(
                f"{path} belongs to user {found.st_uid}, who may have put it there and can read it. If it is "
                f"yours: chown {os.geteuid()} {path}. If not, restore it from a backup."
            )
        if found.st_mode & _OTHERS:
            if not _may_change(found):
                raise Exposed(
                    f"Other users can read {path} (mode {_mode(found)}), and this one cannot change that. As "
                    f"its owner: chmod 600 {path}."
                )
            path.chmod(0o600)
            opened.append(f"{path.relative_to(data)} ({_mode(found)})")
    if opened:
        yield (
            f"other users could read secrets in {data}: {', '.join(opened)}. They are closed now. If "
            "somebody has read them, make new ones: docs/operate.md says how."
        )


def _may_change(found: os.stat_result) -> bool:
    return os.geteuid() in (0, found.st_uid)


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
