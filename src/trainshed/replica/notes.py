"""What people should know of one incarnation: each note is written to the slot's journal and told to whoever listens,
again to whoever comes later, since only the number of a note says whether it is known. Runs on Python 3.6.
"""

from trainshed.replica import protocol
from trainshed.replica import segments as log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Notes:
    """`keep` writes a note to the slot's journal, `tell` sends a message to whoever listens."""

    __slots__ = ("_keep", "_notes", "_tell")

    def __init__(
        self, keep: "Callable[[protocol.Message], None]", tell: "Callable[[protocol.Message], None]"
    ) -> None:
        self._keep = keep
        self._tell = tell
        self._notes: "list[protocol.Message]" = []

    def add(self, name: str, severity: str, text: str) -> None:
        """One more. `name`: what kind of note it is; `severity`: INFO, WARNING or ERROR."""
        message: "protocol.Message" = {
            "e": "note",
            "n": len(self._notes) + 1,
            "at": log.now(),
            "name": name,
            "severity": severity,
            "text": text,
        }
        self._notes.append(message)
        try:
            self._keep(message)
        except OSError:
            pass  # Who listens now hears it all the same.
        self._tell(message)

    def tell_again(self) -> None:
        """Somebody is there who may not know them."""
        for note in self._notes:
            self._tell(note)
