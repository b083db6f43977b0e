"""Writes a unit as a tar to its standard output, in a process of its own so that it does not delay the
service.

    python -m trainshed_cluster.remote.content.packing DIRECTORY [without-sites]
"""

import os
import stat
import sys
import tarfile
from pathlib import Path

from trainshed.replica.supervisor import program
from trainshed_cluster.remote.content import frames, trees

WITHOUT_SITES = "without-sites"
_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def pack(root: Path, put: frames.FrameWriter, *, without_sites: bool = False) -> None:
    """Write all of `root`. Raises OSError."""
    identity = trees.Identity(root)
    first_names: dict[tuple[int, int], str] = {}
    for path, status in trees.walk(root, without_sites=without_sites):
        member = _member(root, path, status)
        if member.isreg() and status.st_nlink > 1:
            place = (status.st_dev, status.st_ino)
            first = first_names.setdefault(place, path)
            if first != path:
                member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
        identity.add((path, status))
        put.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if member.isreg():
            _write_content(f"{root}/{path}", member.size, put)
    put.write(bytes(2 * tarfile.BLOCKSIZE))
    put.end(identity.digest)


def _write_content(path: str, size: int, put: frames.FrameWriter) -> None:
    # A link that replaced the file meanwhile must not be followed.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        left = size
        while left:
            piece = os.read(handle, min(left, frames.PIECE))
            if not piece:
                raise OSError(f"{path} became shorter while it was read")
            put.write(piece)
            left -= len(piece)
    finally:
        os.close(handle)
    put.write(bytes(-size % tarfile.BLOCKSIZE))


def _member(root: Path, path: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(status.st_mode)
    member.uid, member.gid = status.st_uid, status.st_gid
    # In whole seconds, as bytecode records its source's time.
    member.mtime = int(status.st_mtime)
    member.type = _TYPES.get(stat.S_IFMT(status.st_mode), tarfile.REGTYPE)
    if member.issym():
        member.linkname = os.readlink(f"{root}/{path}")
    elif member.isreg():
        member.size = status.st_size
    return member


def main() -> None:
    root = Path(sys.argv[1])
    # The unit must not be removed while it is sent.
    program.hold_leases([str(root)])

    def put(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]

    try:
        pack(root, frames.FrameWriter(put), without_sites=WITHOUT_SITES in sys.argv[2:])
    except BrokenPipeError:
        sys.exit(1)  # The receiver has gone.
    except Exception as failure:  # The process has no other way to report a failure.
        put(frames.failed(f"{root} cannot be read: {failure}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
