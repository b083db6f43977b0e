"""Reports of reducers and workers to the service: one small file that is replaced as a whole.

    {"notes": [{"id": "mode", "severity": "INFO", "text": "…"}], "metrics": {"sent_bytes": 1, …}}

Notes only grow; the service puts each, once, on the job's timeline. Metrics are numbers, or lists of numbers
by rank, that the service writes down while the replica runs. A program may do without: nothing here raises.
"""

import json
import os
import threading
from typing import Dict, List, Mapping, Union

Metric = Union[int, float, List[int], List[float]]


class Reports:
    """Writes to `path`; to nowhere if it is "". Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._notes: Dict[str, Dict[str, str]] = {}
        self._metrics: Mapping[str, Metric] = {}

    def note(self, name: str, text: str, severity: str = "INFO") -> bool:
        """Tell it once: another note of the same name is ignored. `severity`: INFO, WARNING, ERROR. Whether
        the service can see it, which puts it into the log as well."""
        with self._lock:
            if name in self._notes:
                return True
            self._notes[name] = {"id": name, "severity": severity, "text": text}
            return self._write()

    def metrics(self, metrics: "Mapping[str, Metric]") -> None:
        """These take the place of those before."""
        with self._lock:
            if metrics != self._metrics:
                self._metrics = dict(metrics)
                self._write()

    def _all_notes(self) -> "List[Mapping[str, str]]":
        """Other processes' too: those that a program has started may be ranks, and have reported here
        before."""
        try:
            with open(self._path, encoding="utf-8") as file:
                found = {note["id"]: note for note in json.load(file)["notes"]}
        except (OSError, ValueError, KeyError, TypeError):
            found = {}
        return list({**found, **self._notes}.values())

    def _write(self) -> bool:
        if not self._path:
            return False
        text = json.dumps({"notes": self._all_notes(), "metrics": self._metrics})
        own = "{}.{}".format(self._path, os.getpid())
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(own, self._path)
        except OSError:
            return False  # A full disk is no reason to lose a step.
        return True
