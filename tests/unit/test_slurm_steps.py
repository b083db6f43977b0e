"""Detection of directories that contain sockets of Slurm steps."""

import socket
from pathlib import Path

from trainshed.replica.sandbox import view


def test_slurm_step_directories_are_detected_by_socket_names(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as step:
        step.bind(str(tmp_path / "n\u00e4me with blanks_7.0"))
        assert str(tmp_path) in view.slurm_step_directories()
        tmp_path.chmod(0o777)
        assert str(tmp_path) not in view.slurm_step_directories()
