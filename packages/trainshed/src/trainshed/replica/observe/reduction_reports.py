"""Stores the reports of reducers and workers, for jobs with reducers (spec/reduction#reports).

Each program atomically replaces one small file with its report. Each note of a report goes once to the
replica's log and once to the notes for users (`notes`). If a worker's program has ended without a report, the
user receives a note that the reducers were idle. Errors here never affect the program or its record.
"""

import json
import time
from collections.abc import Callable
from typing import Any, cast

from trainshed.replica import protocol
from trainshed.replica.observe import file_watcher, masking, notes
from trainshed.replica.observe.notes import ERROR, INFO, WARNING
from trainshed.replica.system import loop

MAX_NOTES = 20
"""Maximum number of notes to users about one run of a replica, in addition to one for each reducer that may
become silent."""
_PREFIX = "trainshed reduction: "
"""Prefix of lines in the log, the same as in the lines that the package itself writes."""
UNUSED = "unused"
"""Name of a note to users: a program ended without a report and did not use the reducers."""
_UNUSED_TEXT = (
    "This program ended without using the job's reducers: no process of it reported the Reduction Server's "
    "plug-in. It works for PyTorch's torch.distributed, in Pythons that have NumPy and the PYTHONPATH that "
    "the service sets. If the job does not need reducers, remove worker pool 2."
)

_SHORT = 5.0
"""A program that failed within this many seconds may not have reached its use of reducers, so its owner gets
no note."""


class Reduction:
    """Stores the reduction reports of one run (incarnation) of a replica's program. `mask`: masks secrets in
    stored texts."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        events: loop.Loop,
        *,
        log: Callable[[str], None],
        notes: notes.Notes,
        mask: masking.Mask | None = None,
    ) -> None:
        """Create the object before the program starts. `plan`: a launch document with `reducers`."""
        self._most_notes = MAX_NOTES + (plan.observation.reducers or 0)
        self._is_expected = plan.observation.reducers_expected
        #: Writes a line of the service into the replica's log.
        self._log = log
        #: Stores notes to users.
        self._notes = notes
        self._watcher = file_watcher.FileWatcher(PROGRAM_FILE, events, self._read_file, mask=mask)
        self._known: set[str] = set()
        self._is_there = False
        self._owed_after = float("inf")
        # A file of an earlier run of the program must not count as a report of this run.
        self._watcher.discard()

    def start(self) -> None:
        """Start to store the program's reports."""
        self._watcher.start()
        self._owed_after = time.monotonic() + _SHORT

    def seal(self, *, succeeded: bool) -> None:
        self._watcher.close()
        self._read_file()
        is_owed = succeeded or time.monotonic() >= self._owed_after
        if self._is_expected and is_owed and not self._is_there and not self._known:
            self._note(Note(UNUSED, WARNING, _UNUSED_TEXT))

    # --- the program's file ---

    def _read_file(self) -> bool:
        """Read the program's report and store its new notes to users. Return False if this method must be
        called again."""
        try:
            data = self._watcher.read()
            for note in notes_in(data) if data else ():
                self._note(note)
            self._is_there |= bool(data)
        except file_watcher.Changing:
            return False
        except file_watcher.Unreadable as unreadable:
            self._cannot_be_read(str(unreadable))
        except NoReport:
            self._cannot_be_read("it is not a JSON object")
        return True

    def _cannot_be_read(self, why: str) -> None:
        text = "The reduction report of this program cannot be read: %s." % why
        self._note(Note("unreadable", WARNING, text))

    def _note(self, note: "Note") -> None:
        """Store a note to users, once for each name, and limit the number of notes."""
        if note.name in self._known or len(self._known) >= self._most_notes:
            return
        self._known.add(note.name)
        # Logged as a line of JSON with a severity, like lines of a program.
        self._log(json.dumps({"severity": note.severity, "message": _PREFIX + note.text}))
        self._notes.add(note.name, note.severity, note.text)


PROGRAM_FILE = "reduction.json"
"""File in the program's directory `program.HYPERTUNE`."""
MAX_TEXT = 500
"""Maximum characters of a note to users."""

_MAX_NAME = 64
_MAX_REPORTED = 100


class NoReport(Exception):
    """Raised if the data is not a valid report."""


class Note:
    """A note to users in one line of text. `name`: the note's name in the program."""

    def __init__(self, name: str, severity: str, text: str) -> None:
        # JSON text may contain half of a surrogate pair, which cannot be stored.
        self.name = name.encode("utf-8", "replace").decode()
        self.severity = severity if severity in (INFO, WARNING, ERROR) else INFO
        text = " ".join(text[: 2 * MAX_TEXT].split())
        text = "".join([c if c.isprintable() else "\ufffd" for c in text])
        self.text = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "\u2026"


def notes_in(data: bytes) -> list[Note]:
    """Return the notes (messages for the job's timeline) in a report. Raises NoReport if `data` is not a
    valid report."""
    try:
        parsed = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise NoReport from None
    if not isinstance(parsed, dict):
        raise NoReport
    reported = cast("dict[str, Any]", parsed).get("notes")
    items = cast("list[Any]", reported if isinstance(reported, list) else [])
    made: list[Note] = []
    for item in items[:_MAX_REPORTED]:
        fields = cast("dict[str, Any]", item if isinstance(item, dict) else {})
        name, text = fields.get("id"), fields.get("text")
        if isinstance(name, str) and isinstance(text, str) and name and text.strip():
            made.append(Note(name[:_MAX_NAME], str(fields.get("severity")), text))
    return made
