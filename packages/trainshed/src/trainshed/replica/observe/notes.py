"""Stores the notes to users about one run (incarnation) of a replica.

Each note is written to the journal in the replica's directory and sent to all listeners, including listeners
that connect later. Listeners recognize repeated notes by their numbers. On a full disk, notes wait until
space is free.
"""

from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files
from trainshed.replica.observe import segments as log

INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"
"""Severities of a note to users."""

_MAX_NOTES = 10
"""Maximum number of notes to users with one name, because a program may fill and empty its disk repeatedly.
"""


class Notes:
    """Stores the notes to users about one run (incarnation) of a replica."""

    def __init__(
        self,
        keep: Callable[[protocol.Message], None],
        notify: Callable[[protocol.Message], None],
        retries: growing_files.DiskRetries,
    ) -> None:
        #: Writes a note to users into the journal of the replica, a file in its directory.
        self._keep = keep
        #: Sends a message to all listeners.
        self._notify = notify
        #: Repeats writes to a full disk.
        self._retries = retries
        self._kept = 0
        self._notes: list[protocol.Message] = []

    def add(self, name: str, severity: str, text: str) -> None:
        """Add a note to users, unless too many notes have that name. `name`: the kind of the note.
        `severity`: `INFO`, `WARNING` or `ERROR`."""
        if [note["name"] for note in self._notes].count(name) >= _MAX_NOTES:
            return
        message: protocol.Message = {
            "e": "note",
            "n": len(self._notes) + 1,
            "at": log.now(),
            "name": name,
            "severity": severity,
            "text": text,
        }
        self._notes.append(message)
        is_saved = self.save()
        self._notify(message)  # Send the note even if it is not in the journal yet.
        if not is_saved:
            self._retries.wait(self.save)

    def save(self) -> bool:
        """Write all unwritten notes to the journal. Return False if the disk is full."""
        try:
            while self._kept < len(self._notes):
                self._keep(self._notes[self._kept])
                self._kept += 1
        except OSError as error:
            return not growing_files.is_unwritable(error)
        return True

    def announce(self) -> None:
        for note in self._notes:
            self._notify(note)
