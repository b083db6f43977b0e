"""Unpacks the files of a failed replica on the service's machine. It runs as a process of its own, which
reads a tar of the files and may be killed at any moment.

A program chose every name in the tar, and the node is not trusted: files are only written below the new
directory, through no link, and belong to the user who unpacks them. It writes one line: `done` or `failed
WHY`. Its arguments are the directory, which it makes, and the most bytes that the files may have.
"""

import os
import sys
import tarfile
from pathlib import Path

from trainshed_cluster.remote.content.frames import Torn
from trainshed_cluster.remote.content.unpacking import ByteSource, Unpacking, tell

_MOST_ENTRIES = 200_000


class FilesLeft(Unpacking):
    """Unpacks such files. They stay writable, because shells are opened among them. `limit`: most bytes of
    all files."""

    def __init__(self, root: Path, limit: int) -> None:
        super().__init__(root)
        self._limit = limit
        self._entries = 0

    def _make(self, member: tarfile.TarInfo, stream: ByteSource) -> None:
        self._entries += 1
        self._limit -= max(0, member.size)
        if self._limit < 0 or self._entries > _MOST_ENTRIES:
            raise Torn("there is more than was to be sent")
        super()._make(member, stream)

    def _finish(self, path: str, member: tarfile.TarInfo) -> None:
        # No access for other users, and no setuid bits.
        Path(path).chmod(member.mode & 0o777 | (0o700 if member.isdir() else 0o600))
        os.utime(path, (member.mtime, member.mtime))


def main() -> None:
    root, limit = Path(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)
    try:
        FilesLeft(root, limit).take(sys.stdin.buffer)
        root.chmod(0o755)
    except (Torn, OSError) as failure:
        tell(f"failed {failure}")
    else:
        tell("done")


if __name__ == "__main__":
    main()
