"""Where an agent's process begins: the zygote is forked off before all else is loaded.

    python -m trainshed.engines.remote.start < DOCUMENT

It needs little, is ready while the rest is loaded, and pays for no second interpreter. Nothing of the
document has been read by then, and there is one thread.
"""

import contextlib
import gc
import os
import socket

from trainshed.replica import zygote

_SOONER = b"300"
"""Thousandths of the memory that there is, by which a program counts as larger than it is (proc(5))."""


def main() -> None:
    """Be an agent, with a zygote of its own."""
    pid, connection = _fork_zygote()
    # Nothing of what is loaded is ever garbage: to look for some would take a tenth of the time.
    gc.disable()
    from trainshed.engines.remote import agent

    gc.freeze()
    gc.enable()
    agent.main(pid, connection)
    # All is closed and cleared away: what the interpreter would tidy up goes with the process.
    os._exit(0)


def _fork_zygote() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # Nothing of the cluster's: programs begin with what their plan says.
            os.environ.clear()
            os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8")
            ours.close()
            _offer()
            zygote.run(theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


def _offer() -> None:
    """Where the memory of all of us together is short, what this process starts is to be killed and not the
    agent: with that all programs would be lost, and nobody could say why."""
    with contextlib.suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        with os.fdopen(score, "wb", buffering=0) as file:
            file.write(_SOONER)


if __name__ == "__main__":
    main()
