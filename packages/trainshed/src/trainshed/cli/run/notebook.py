"""Runs JupyterLab as a job's program (`trainshed run --notebook`).

It listens on a Unix socket that no other job's program can reach. Its files are in the job's output
directory. It is packed as the program, so it imports no other module of ours, and runs on any Python from 3.6
on.
"""

import os
import sys
import tempfile
from pathlib import Path

SOCKET = "notebook.sock"
"""Path below the working directory (`core.terminals`)."""
UNUSED = 8 * 3600
"""Seconds without an open page and without a running cell after which kernels, then the server and the job
end."""


def main() -> None:
    """Replace this process with JupyterLab."""
    output = os.environ.get("AIP_MODEL_DIR", "")
    here = Path(output.replace("gs://", "/gcs/")).parent if output else Path.cwd()
    here.mkdir(parents=True, exist_ok=True)
    # For the Unix sockets of kernels, whose paths must be short.
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter")
    # The data files of a job's packages are next to them, where JupyterLab does not search.
    site = Path(next(path for path in sys.path if Path(path, "jupyterlab").is_dir()))
    if (site / "share" / "jupyter").is_dir():
        os.environ["JUPYTERLAB_DIR"] = str(site / "share" / "jupyter" / "lab")
        os.environ["JUPYTER_PATH"] = str(site / "share" / "jupyter")
        os.environ["JUPYTER_CONFIG_PATH"] = str(site / "etc" / "jupyter")
    socket = Path(SOCKET)
    if socket.exists():
        socket.unlink()  # Of an earlier attempt of the replica.
    words = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        *("--ServerApp.sock=" + SOCKET, "--ServerApp.sock_mode=0600"),
        # The service admits callers with the right to open a shell. No other process reaches the socket.
        *("--IdentityProvider.token=", "--ServerApp.allow_remote_access=True"),
        # Where programs cannot have separate users, this one is root of its own namespace.
        "--ServerApp.allow_root=True",
        # Programs of other jobs could read output on a TCP port.
        "--KernelManager.transport=ipc",
        "--ServerApp.root_dir=" + str(here),
        f"--MappingKernelManager.cull_idle_timeout={UNUSED}",
        f"--TerminalManager.cull_inactive_timeout={UNUSED}",
        f"--ServerApp.shutdown_no_activity_timeout={UNUSED}",
    ]
    os.execv(words[0], words + sys.argv[1:])


if __name__ == "__main__":
    main()
