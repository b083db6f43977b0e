"""The hosts file of a machine that one gang's programs have to themselves, as in a Pod: where the kernel lets
nobody be shown a file of his own, theirs is the machine's (docs/adr/0115)."""

import os
from collections.abc import Sequence
from pathlib import Path

_OURS = "# Replicas of the job, kept up to date by its agent."
"""Line below which nothing is kept that others have written."""


class MachineHosts:
    """`path`: of the file, which others may have begun."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_ours(self) -> bool:
        """This process may write it."""
        try:
            with self._path.open("r+b"):
                return True
        except OSError:
            return False

    def write(self, named: Sequence[tuple[str, str]]) -> None:
        """Have every (name, address) found in it, and none of those that were written before. Raises
        OSError."""
        begun, _, _ = self._path.read_text("utf-8").partition(f"{_OURS}\n")
        if begun and not begun.endswith("\n"):
            begun += "\n"
        words = [line.split() for line in begun.splitlines()]
        known = {(name, address) for address, *names in filter(None, words) for name in names}
        lines = [f"{address}\t{name}\n" for name, address in named if (name, address) not in known]
        rewrite(self._path, f"{begun}{_OURS}\n{''.join(lines)}")


def rewrite(path: Path, text: str) -> None:
    """Change a file in place, so that whoever has it mounted sees it, and nobody finds it empty. Made
    unless it is there. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        content = text.encode()
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
