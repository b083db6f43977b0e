"""Removes other users' access to the data directory, because it contains tokens and secrets."""

import os
import stat
from pathlib import Path
from typing import Final

import click


class Exposed(click.ClickException):
    """Other users can write to the data directory, and the service cannot change its mode. The message
    contains advice."""


_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


def close_to_others(data: Path) -> str | None:
    """Remove the access of other users to the data directory, except read access of its group. Return a
    message about the change, or None without a change. Raises Exposed."""
    status = data.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _OTHERS:
        return None
    if mode & stat.S_ISVTX:
        raise Exposed(
            f"{data} is a directory for the files of all users. Choose a directory below it with --data."
        )
    if os.geteuid() in (0, status.st_uid):
        data.chmod(mode & ~_OTHERS)
        return (
            f"Other users could enter {data} (mode {mode:04o}). It is closed now. If they could write "
            "there, check the owners of its files: ls -l. If a user may have read secrets, replace them: "
            "see docs/operate.md."
        )
    if mode & stat.S_IWOTH:
        raise Exposed(
            f"All users can write to {data}. Run chmod go-w on it, or choose another directory with --data."
        )
    # The directory is a volume of another user, as in Kubernetes. The service's files in it have private
    # modes.
    return None
