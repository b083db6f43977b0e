"""Starts an agent on a node without an installation of Trainshed. The node's Python reads this module from
standard input.

The module uses only Python 3.4 and the standard library, so that it can report unsuitable versions of Python.
A header, the agent's startup data (its document) and an archive of code follow the module on the input
(`bootstrap`). The agent confirms that it has read everything (`messages.DOCUMENT_READ`). Until then, the
sender waits and can receive errors.
"""

import _imp
import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, NoReturn

UNFIT = 78
"""Exit status if the agent's code cannot run on this node. Standard error contains the reason."""


def load(stream: "IO[bytes]") -> None:
    """Read the rest of `stream`, unpack the agent's code unless the node already has it, and become the
    agent."""
    header = json.loads(stream.read(int(stream.read(8), 16)).decode())
    document = stream.read(header["document"])
    _require_known_python(header)
    archive = stream.read(header["size"])
    try:
        if len(archive) < header["size"]:
            raise OSError("the input ended early")
        code = _install(header["directory"], header["digest"], archive)
    except OSError as failure:
        _give_up("cannot store the agent's code in %s/code: %s" % (header["directory"], failure))
    del archive
    sys.path.insert(0, code)
    sys.argv = [header["module"]]
    try:
        agent = __import__(header["module"], fromlist=["main"])
    except ImportError as failure:
        _give_up("%s cannot load the agent's code: %s" % (sys.executable, failure))
    # Cancel the alarm, which the script that started this process may have set to end a process without
    # input.
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _replace_stdin(document)
    agent.main()


def _require_known_python(header: "dict[str, Any]") -> None:
    ours = _imp.extension_suffixes()[0]
    if ours not in header["extensions"]:
        _give_up(
            "%s is Python %d.%d (%s), but the service sent code for %s only: set `python` of its engine to "
            "a command that starts a supported Python on the nodes, or `shared = true` if they share the "
            "service's files"
            % ((sys.executable,) + sys.version_info[:2] + (ours, ", ".join(header["extensions"])))
        )


def _give_up(why: str) -> "NoReturn":
    sys.stderr.write("trainshed agent on %s: %s\n" % (os.uname()[1], why))
    sys.stderr.flush()
    os._exit(UNFIT)


def _install(directory: str, digest: str, archive: bytes) -> str:
    """Return the directory of the agent's code. Unpacks the archive unless the node already has the code."""
    import fcntl

    parent = os.path.join(directory, "code")
    for path, mode in ((directory, 0o711), (parent, 0o755)):
        try:
            os.makedirs(path, mode)
        except OSError:
            if not os.path.isdir(path):
                raise
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError("%s is a link, or belongs to user %d" % (path, status.st_uid))
    code = os.path.join(parent, digest)
    if not _is_complete(code):
        lock = os.open(os.path.join(parent, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(code):
            _unpack(parent, digest, archive)
        os.close(lock)
    return code


def _is_complete(code: str) -> bool:
    """Return whether the directory contains the whole code. A crash may have damaged the code."""
    try:
        with open(os.path.join(code, ".built"), "rb") as file:
            return file.read(100) == _boot()
    except OSError:
        return False


def _unpack(parent: str, digest: str, archive: bytes) -> None:
    """Unpack the archive so that the code is either complete or missing, even after a crash. The caller holds
    the lock."""
    import hashlib
    import io
    import shutil
    import tarfile

    if hashlib.sha256(archive).hexdigest() != digest:
        raise OSError("the digest of the received code is wrong")
    for name in os.listdir(parent):
        # Remove directories that killed loaders left behind, or whose code may be incomplete.
        if name == digest or (name.startswith(".") and name != ".lock"):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    draft = os.path.join(parent, ".%s.%d" % (digest, os.getpid()))
    before = os.umask(0o022)
    try:
        os.mkdir(draft, 0o755)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            if hasattr(tarfile, "tar_filter"):
                tar.extractall(draft, filter="tar")
            else:
                tar.extractall(draft)
        with open(os.path.join(draft, ".built"), "wb") as file:
            file.write(_boot())
        os.rename(draft, os.path.join(parent, digest))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        os.umask(before)


def _boot() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return b"unknown"


def _replace_stdin(document: bytes) -> None:
    """Replace standard input with a file in memory that contains the agent's startup data (`document`). The
    file ceases to exist when it is closed.

    A pipe is not used, because the kernel limits the size of pipes for users with many pipes, even for root
    (pipe(7), `pipe-user-pages-soft`).
    """
    handle = os.memfd_create("document")
    with open(handle, "wb", closefd=False) as file:
        file.write(document)
    os.lseek(handle, 0, os.SEEK_SET)
    os.dup2(handle, 0)
    os.close(handle)
    sys.stdin = open(0, closefd=False)


if __name__ == "__main__":
    load(sys.stdin.buffer)
