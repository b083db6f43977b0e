"""The entry point of an agent's process. It forks the zygote before it loads anything else, and becomes the
agent.

    python -m trainshed_cluster.remote.start < DOCUMENT

Because of the early fork, the zygote needs little memory and no second interpreter. The process has only one
thread then, and has not yet read the agent's startup data (the document), which contains secrets.
"""

import contextlib
import os
import socket
from pathlib import Path

_OOM_SCORE = "300"
"""`oom_score_adj` of programs (proc(5)). When the kernel chooses a process to kill because memory runs out,
it adds this many thousandths of all memory to the use of the program."""


def main() -> None:
    """Run an agent with its own zygote."""
    pid, connection = _fork_zygote()
    from trainshed_cluster.remote import agent_process

    agent_process.main(pid, connection)
    # All files are already closed and removed. Skip the finalization of the interpreter, because it takes
    # time.
    os._exit(0)


def _fork_zygote() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # Remove the variables that the cluster has set. Programs receive only the variables of their
            # plan.
            os.environ.clear()
            os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8")
            ours.close()
            # Programs inherit the score. If the memory of the allocation runs out, the kernel should kill a
            # program and not the agent. The agent's death would end all programs without a reported reason.
            # Ignore failures, because some systems have no such scores.
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
            from trainshed.replica import zygote

            zygote.run(theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


if __name__ == "__main__":
    main()
