"""Runs JupyterLab as a job's program (`trainshed run --notebook`): at a Unix socket that no other job's
program reaches, in a directory of the job's output that stays.

It is packed as the program, so it imports no other module of ours, and runs on any Python from 3.6 on.
"""

import os
import sys
import tempfile
from pathlib import Path

SOCKET = "notebook.sock"
"""In the working directory (`core.terminals`)."""
UNUSED = 8 * 3600
"""Seconds without an open page and without a cell at work after which kernels, then the server and the job
end."""


def main() -> None:
    """Replace this process by JupyterLab."""
    output = os.environ.get("AIP_MODEL_DIR", "")
    here = Path(output.replace("gs://", "/gcs/")).parent if output else Path.cwd()
    here.mkdir(parents=True, exist_ok=True)
    # Kernels have Unix sockets there, whose paths must be short.
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter")
    # Files of packages that a job brings along lie beside them, where JupyterLab does not look.
    site = Path(next(path for path in sys.path if Path(path, "jupyterlab").is_dir()))
    if (site / "share" / "jupyter").is_dir():
        os.environ["JUPYTERLAB_DIR"] = str(site / "share" / "jupyter" / "lab")
        os.environ["JUPYTER_PATH"] = str(site / "share" / "jupyter")
        os.environ["JUPYTER_CONFIG_PATH"] = str(site / "etc" / "jupyter")
    socket = Path(SOCKET)
    if socket.exists():
        socket.unlink()  # Of the replica's life before.
    words = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        *("--ServerApp.sock=" + SOCKET, "--ServerApp.sock_mode=0600"),
        # The service lets in who may open a shell, and nobody else reaches the socket.
        *("--IdentityProvider.token=", "--ServerApp.allow_remote_access=True"),
        # Where programs cannot be other users, this one is root of a view of its own.
        "--ServerApp.allow_root=True",
        # At a port of the machine programs of other jobs could read what is printed.
        "--KernelManager.transport=ipc",
        "--ServerApp.root_dir=" + str(here),
        f"--MappingKernelManager.cull_idle_timeout={UNUSED}",
        f"--TerminalManager.cull_inactive_timeout={UNUSED}",
        f"--ServerApp.shutdown_no_activity_timeout={UNUSED}",
    ]
    os.execv(words[0], words + sys.argv[1:])


if __name__ == "__main__":
    main()
