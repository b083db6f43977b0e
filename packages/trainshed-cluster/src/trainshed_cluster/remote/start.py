"""The entry point of an agent's process: it forks the zygote before anything else is loaded, and becomes the
agent.

    python -m trainshed_cluster.remote.start < DOCUMENT

The forked zygote needs little, and no second interpreter. At the fork nothing of the document, which holds
secrets, has been read, and there is one thread.
"""

import contextlib
import os
import socket
from pathlib import Path

_OOM_SCORE = "300"
"""`oom_score_adj` of programs: thousandths of all memory by which one counts as larger (proc(5))."""


def main() -> None:
    """Run an agent with a zygote of its own."""
    pid, connection = _fork_zygote()
    from trainshed_cluster.remote import agent_process

    agent_process.main(pid, connection)
    # Everything is closed and removed; the interpreter's own finalization would only take time.
    os._exit(0)


def _fork_zygote() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # Without the cluster's variables: programs only get those of their plan.
            os.environ.clear()
            os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8")
            ours.close()
            # The children inherit it: if the allocation's memory runs out, the kernel should kill a program
            # rather than the agent, whose death would lose all programs without a reason.
            with contextlib.suppress(OSError):  # The system has no such scores.
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
            from trainshed.replica import zygote

            zygote.run(theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


if __name__ == "__main__":
    main()
