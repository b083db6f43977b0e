"""The entry point of an agent's process. It forks the zygote before it loads anything else, and becomes the
agent.

    python -m trainshed_cluster.remote.start < DOCUMENT

So the zygote needs little memory and no second interpreter. At the fork there is one thread, and the
document, which contains secrets, has not been read.
"""

import contextlib
import os
import socket
from pathlib import Path

_OOM_SCORE = "300"
"""`oom_score_adj` of programs: added thousandths of all memory in the kernel's choice of a victim
(proc(5))."""


def main() -> None:
    """Run an agent with a zygote of its own."""
    pid, connection = _fork_zygote()
    from trainshed_cluster.remote import agent_process

    agent_process.main(pid, connection)
    # All files are closed and removed. The interpreter's own finalization would only take time.
    os._exit(0)


def _fork_zygote() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # Remove the cluster's variables: programs receive only those of their plan.
            os.environ.clear()
            os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8")
            ours.close()
            # Programs inherit the score. If the allocation's memory runs out, the kernel should kill a
            # program and not the agent, whose death would end all programs without a reported reason.
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
