"""Unpacks what a failed replica left on its node: a process of its own on the service's machine, which is fed
a tar of the files and may be killed at any moment.

A program chose every name in there, and the node may be anybody's: nothing is written but below the new
directory, by no link, and all of it belongs to who unpacks it. It writes one line: `done` or
`failed WHY`. Its arguments: the directory, which it makes, and how many bytes the files may have at most.
"""

import os
import sys
import tarfile
from pathlib import Path

from trainshed.engines.remote.content.frames import Torn
from trainshed.engines.remote.content.unpacking import ByteSource, Unpacking, tell

_MOST_ENTRIES = 200_000


class FilesLeft(Unpacking):
    """The files, which stay writable: a shell is opened among them. `limit`: bytes of all of them."""

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
        # Nobody else's, and nothing that would give another's rights.
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
