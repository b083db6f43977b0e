"""The entry point of an agent's process: it forks the zygote before anything else is loaded, and starts the
node's first programs if the service has prepared that (`opening`).

    python -m trainshed.engines.remote.start < DOCUMENT

The forked zygote needs little, and no second interpreter. It imports its own modules itself, while this
process reads the document, writes the files that it names, and loads the agent. At the fork nothing of the
document has been read, and there is one thread.
"""

import gc
import os
import select
import socket
import sys
import time

from trainshed.engines.remote import opening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOADED_MEANWHILE = [
    "asyncio",
    "ssl",
    "msgspec",
    "trainshed.engines.local.engine",
    "trainshed.engines.remote.agent",
    "trainshed.engines.remote.agent_process",
]
"""Modules of an agent, those first that others need."""
_BUSY_MILLISECONDS = 50
"""After which it is looked again whether others need the processors."""
_OOM_SCORE = b"300"
"""`oom_score_adj` of programs: thousandths of all memory by which one counts as larger (proc(5))."""


def main(receive: "Callable[[], None] | None" = None) -> None:
    """Run an agent with a zygote of its own. `receive`: returns when the document comes next on standard
    input, which may take a while."""
    # Modules are never garbage: collections while they load would take a tenth of the start's time.
    gc.disable()
    begun = time.time()
    pid, connection = _fork_zygote()
    if receive is not None:
        receive()
    first, document, trust = opening.read(sys.stdin.buffer)
    opening.say_taken()
    opened = opening.begin(first, connection, trust)
    opening.give_precedence(opened)
    from trainshed.engines.remote import agent_process

    gc.freeze()
    gc.enable()
    agent_process.main(pid, connection, (document, trust), opened, begun=begun)
    # Everything is closed and removed; the interpreter's own finalization would only take time.
    os._exit(0)


def load_until_told() -> None:
    """Import the agent's modules, one by one, until there is something to read on standard input, and only
    while a processor is idle, so that starting programs are not slowed down."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while _LOADED_MEANWHILE and not poll.poll(0):
        if opening.busy() >= (os.cpu_count() or 1):
            poll.poll(_BUSY_MILLISECONDS)
        else:
            __import__(_LOADED_MEANWHILE.pop(0))


def _fork_zygote() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # Without the cluster's variables: programs only get those of their plan.
            os.environ.clear()
            os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8")
            ours.close()
            _raise_oom_score()
            from trainshed.replica import zygote

            zygote.run(theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


def _raise_oom_score() -> None:
    """Raise the OOM score of the zygote, whose children inherit it: if the allocation's memory runs out, the
    kernel should kill a program rather than the agent, whose death would lose all programs without a
    reason."""
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        with os.fdopen(score, "wb", buffering=0) as file:
            file.write(_OOM_SCORE)
    except OSError:
        pass


if __name__ == "__main__":
    main()
