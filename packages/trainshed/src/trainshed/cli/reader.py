"""Ends a command that follows something as soon as nobody reads its output any more (`| head`), even while
there is nothing to write."""

import contextlib
import os
import select
import signal
import stat
import threading
from collections.abc import Generator
from types import FrameType

STATUS = 128 + signal.SIGPIPE
"""The exit status, the same that a shell reports of a command that SIGPIPE ended."""
_STDOUT = 1


def reader_has_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    looked = select.poll()
    looked.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))


@contextlib.contextmanager
def until_reader_leaves() -> Generator[None]:
    """Raise SystemExit in the main thread as soon as the reader of standard output is gone. Does nothing if
    standard output is no pipe or socket, or if entered in another thread."""
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and _is_pipe()):
        yield
        return
    before = signal.signal(signal.SIGPIPE, _leave)
    done, end = os.pipe()
    watcher = threading.Thread(target=_watch, args=(done,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(done)
        signal.signal(signal.SIGPIPE, before)


def _watch(done: int) -> None:
    """Interrupt the main thread when the reader has left, unless the other end of `done` is closed first."""
    looked = select.poll()
    # No event is requested: errors and hang-ups are always reported.
    looked.register(_STDOUT, 0)
    looked.register(done, 0)
    if all(descriptor == _STDOUT for descriptor, _ in looked.poll()):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def _leave(_: int, __: FrameType | None) -> None:
    # The signal also comes when a connection to the service was closed.
    if reader_has_left():
        # When Python ends, it flushes buffers to standard output, which would fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
        raise SystemExit(STATUS)


def _is_pipe() -> bool:
    try:
        mode = os.fstat(_STDOUT).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
