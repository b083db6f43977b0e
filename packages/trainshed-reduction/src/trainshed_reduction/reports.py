"""Reports of reducers and workers to the service: one small file that is replaced as a whole.

    {"notes": [{"id": "mode", "severity": "INFO", "text": "…"}]}

Notes are only added; the service puts each, once, on the job's timeline. Programs must not fail for want of a
report: nothing here raises.
"""

import json
import os
import threading
from typing import Dict, List, Mapping


class Reports:
    """The report of one process, written to `path`, or nowhere if that is "". Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._notes: Dict[str, Dict[str, str]] = {}

    def note(self, name: str, text: str, severity: str = "INFO") -> bool:
        """Add a note; a later one of the same name is ignored (True). `severity`: INFO, WARNING, ERROR.
        Returns False if it could not be written; otherwise the service logs it as well."""
        with self._lock:
            if name in self._notes:
                return True
            self._notes[name] = {"id": name, "severity": severity, "text": text}
            return self._write()

    def begin(self) -> None:
        """Write the report, so that the service sees that there is somebody to report."""
        with self._lock:
            self._write()

    def _all_notes(self) -> "List[Mapping[str, str]]":
        """Return this process's notes and those in the file, which other processes of the program wrote."""
        try:
            with open(self._path, encoding="utf-8") as file:
                notes = {note["id"]: note for note in json.load(file)["notes"]}
        except (OSError, ValueError, KeyError, TypeError):
            notes = {}
        return list({**notes, **self._notes}.values())

    def _write(self) -> bool:
        if not self._path:
            return False
        text = json.dumps({"notes": self._all_notes()})
        own = "{}.{}".format(self._path, os.getpid())
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(own, self._path)
        except OSError:
            return False  # A full disk must not end the program.
        return True
