"""Writes a gang's names into the machine's own hosts file, where the gang has the machine to itself, as in a
Pod, and the kernel does not allow a file of its own to be mounted (docs/adr/0099)."""

import os
from collections.abc import Sequence
from pathlib import Path

PATH = "/etc/hosts"
_OURS = "# Replicas of the job, kept up to date by its agent."
"""Line below which nothing is kept that others have written."""


class MachineHosts:
    """The machine's hosts file. `path`: where it is; it may have lines of others."""

    def __init__(self, path: str | Path = PATH) -> None:
        self.path = Path(path)

    @property
    def is_ours(self) -> bool:
        """Whether this process may write it."""
        try:
            with self.path.open("r+b"):
                return True
        except OSError:
            return False

    def write(self, hosts: Sequence[tuple[str, str]]) -> None:
        """Put these (name, address) pairs into the file, in place of those of an earlier call. Raises
        OSError."""
        begun, _, _ = self._read().partition(f"{_OURS}\n")
        if begun and not begun.endswith("\n"):
            begun += "\n"
        words = [line.split() for line in begun.splitlines()]
        known = {(name, address) for address, *names in filter(None, words) for name in names}
        lines = [f"{address}\t{name}\n" for name, address in hosts if (name, address) not in known]
        rewrite(self.path, f"{begun}{_OURS}\n{''.join(lines)}")

    def _read(self) -> str:
        return self.path.read_text("utf-8")


def rewrite(path: Path, text: str) -> None:
    """Change a file in place, so that those who have mounted it see the change and nobody finds it empty.
    Creates it if it does not exist. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        content = text.encode()
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
