"""The hosts file of a machine that one gang's programs have to themselves, as in a Pod: where the kernel lets
nobody be shown a file of his own, theirs is the machine's (docs/adr/0115). Of the standard library alone, and
little of that: programs wait for it (`remote.opening`).
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = "/etc/hosts"
_OURS = "# Replicas of the job, kept up to date by its agent."
"""Line below which nothing is kept that others have written."""


class MachineHosts:
    """`path`: of the file, which others may have begun."""

    def __init__(self, path: "str | os.PathLike[str]" = PATH) -> None:
        self.path = path

    @property
    def is_ours(self) -> bool:
        """This process may write it."""
        try:
            with open(self.path, "r+b"):
                return True
        except OSError:
            return False

    def address_of(self, name: str) -> str:
        """The first that stands there for it and that others can reach; "" = there is none."""
        try:
            found = self._read().splitlines()
        except (OSError, ValueError):
            return ""
        for address, *names in filter(None, (line.partition("#")[0].split() for line in found)):
            if name in names and not address.startswith(("127.", "::1")):
                return address
        return ""

    def write(self, named: "Sequence[tuple[str, str]]") -> None:
        """Have every (name, address) found in it, and none of those that were written before. Raises
        OSError."""
        begun, _, _ = self._read().partition(f"{_OURS}\n")
        if begun and not begun.endswith("\n"):
            begun += "\n"
        words = [line.split() for line in begun.splitlines()]
        known = {(name, address) for address, *names in filter(None, words) for name in names}
        lines = [f"{address}\t{name}\n" for name, address in named if (name, address) not in known]
        rewrite(self.path, f"{begun}{_OURS}\n{''.join(lines)}")

    def begun(self, *, whole: bool = False) -> str:
        """What others have written there; `whole`: and what was added. "" = it cannot be read."""
        try:
            text = self._read()
        except (OSError, ValueError):
            return ""
        return text if whole else text.partition(f"{_OURS}\n")[0]

    def reset(self, begun: str) -> None:
        """Have but that in it. Raises OSError."""
        rewrite(self.path, begun)

    def _read(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read()


def rewrite(path: "str | os.PathLike[str]", text: str) -> None:
    """Change a file in place, so that whoever has it mounted sees it, and nobody finds it empty. Made
    unless it is there. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        content = text.encode()
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
