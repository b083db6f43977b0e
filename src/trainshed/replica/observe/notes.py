"""What people should know of one incarnation: each note is written to the slot's journal and told to whoever
listens, again to whoever comes later, since only the number of a note says whether it is known. What a full
disk does not take is written down later. Runs on Python 3.6.
"""

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files
from trainshed.replica.observe import segments as log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Notes:
    """What a replica wants people to know: kept in the slot's journal and told to whoever listens."""

    __slots__ = ("_keep", "_kept", "_notes", "_retries", "_tell")

    def __init__(
        self,
        keep: "Callable[[protocol.Message], None]",
        tell: "Callable[[protocol.Message], None]",
        retries: growing_files.DiskRetries,
    ) -> None:
        #: Writes a note to the slot's journal.
        self._keep = keep
        #: Sends a message to whoever listens.
        self._tell = tell
        #: Tries again what found the disk full.
        self._retries = retries
        self._kept = 0
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
        is_saved = self.save()
        self._tell(message)  # Written down or not.
        if not is_saved:
            self._retries.wait(self.save)

    def save(self) -> bool:
        """Write down those that are not yet; False: there is no room for them now."""
        try:
            while self._kept < len(self._notes):
                self._keep(self._notes[self._kept])
                self._kept += 1
        except OSError as error:
            return not growing_files.is_full(error)
        return True

    def tell_again(self) -> None:
        """Somebody is there who may not know them."""
        for note in self._notes:
            self._tell(note)
