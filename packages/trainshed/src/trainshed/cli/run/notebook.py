"""Runs JupyterLab as a job's program (`trainshed run --notebook`). It listens on a Unix socket that programs
of other jobs cannot reach. Its files are in the job's output directory.

This module is packed as the program, so it imports no other module of Trainshed, and supports Python 3.6 and
later.
"""

import os
import sys
import tempfile
from pathlib import Path

SOCKET = "notebook.sock"
"""Path of JupyterLab's Unix socket, relative to the working directory. `core.terminals` defines the form of
this path."""
UNUSED = 8 * 3600
"""Seconds without an open page and without a running cell after which JupyterLab stops. First the kernels
stop, then the server, and with it the job."""


def main() -> None:
    """Replace this process with JupyterLab."""
    output = os.environ.get("AIP_MODEL_DIR", "")
    here = Path(output.replace("gs://", "/gcs/")).parent if output else Path.cwd()
    here.mkdir(parents=True, exist_ok=True)
    # JupyterLab creates the Unix sockets of kernels in this directory. Use a directory with a short path,
    # because the length of a socket's path is limited.
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter")
    # JupyterLab and its data files are among the packages of the job. JupyterLab does not search there by
    # default, so set the variables that specify its directories.
    site = Path(next(path for path in sys.path if Path(path, "jupyterlab").is_dir()))
    if (site / "share" / "jupyter").is_dir():
        os.environ["JUPYTERLAB_DIR"] = str(site / "share" / "jupyter" / "lab")
        os.environ["JUPYTER_PATH"] = str(site / "share" / "jupyter")
        os.environ["JUPYTER_CONFIG_PATH"] = str(site / "etc" / "jupyter")
    socket = Path(SOCKET)
    if socket.exists():
        socket.unlink()  # An earlier attempt left the socket behind.
    words = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        *("--ServerApp.sock=" + SOCKET, "--ServerApp.sock_mode=0600"),
        # No token is needed: the service checks the right to open a shell, and no other process can reach the
        # socket.
        *("--IdentityProvider.token=", "--ServerApp.allow_remote_access=True"),
        # If programs cannot have separate users, this process is root in its own namespace. JupyterLab
        # refuses to run as root without this option.
        "--ServerApp.allow_root=True",
        # Kernels use Unix sockets, because programs of other jobs could read output from a TCP port.
        "--KernelManager.transport=ipc",
        "--ServerApp.root_dir=" + str(here),
        f"--MappingKernelManager.cull_idle_timeout={UNUSED}",
        f"--TerminalManager.cull_inactive_timeout={UNUSED}",
        f"--ServerApp.shutdown_no_activity_timeout={UNUSED}",
    ]
    os.execv(words[0], words + sys.argv[1:])


if __name__ == "__main__":
    main()
