"""Reports of reducers and workers reach the log, the journal and the listeners of a real shim
(spec/reduction#reports)."""

import json
import os

from tests.contract.replica.conftest import Line, Place
from trainshed.core.environment import REDUCTION_REPORT
from trainshed.core.launch import REDUCTION_REPORT_FILE
from trainshed.replica import protocol
from trainshed.replica.observe import reduction_reports
from trainshed.replica.supervisor import journal, program

REPORT = """
import json, os, time
path = os.environ["TRAINSHED_REDUCTION_REPORT_FILE"]
def report(notes=()):
    keys = ("id", "severity", "text")
    with open(path + ".own", "w") as file:
        json.dump({"notes": [dict(zip(keys, note)) for note in notes]}, file)
    os.replace(path + ".own", path)
MODE = ("mode", "INFO", "pure: 4 reducers")
"""


def run(place: Place, text: str, **fields: object) -> Line:
    """Run a program that knows its report file, in a slot of a job with four reducers."""
    files = place.slot / protocol.FILES
    path = str(files / program.HYPERTUNE / reduction_reports.PROGRAM_FILE)
    if place.level != protocol.LEVEL_SESSION:
        path = REDUCTION_REPORT
    environ = {"PATH": os.environ["PATH"], REDUCTION_REPORT_FILE: path}
    return place.python(text, **{"environ": environ, "reducers": 4, **fields})


def notes(line: Line) -> list[tuple[int, str, str, str]]:
    """Return all notes of one program, from its start to its end."""
    notes: list[tuple[int, str, str, str]] = []
    while (message := line.hear("note", "exited", "lost", "refused"))["e"] == "note":
        notes.append((message["n"], message["name"], message["severity"], message["text"]))
    assert message["e"] == "exited", message
    return notes


def service_lines(place: Place) -> list[dict[str, str]]:
    """Return the lines that the service itself wrote to the log."""
    return [json.loads(str(line["m"])) for line in place.log() if line["s"] == "b"]


def test_note_of_the_reduction_package_is_reported_stored_and_logged_once(place: Place) -> None:
    """spec/reduction#reports: reports are read regardless of the program's user. The log shows
    their severity."""
    late = '("\\ud800late", "WARNING", "rank 3\\n waits")'
    line = run(place, f"{REPORT}report([MODE]); report([MODE]); report([MODE, {late}])")
    seen = notes(line)
    mode, late = (1, "mode", "INFO", "pure: 4 reducers"), (2, "?late", "WARNING", "rank 3 waits")
    assert seen == [mode, late]
    assert service_lines(place) == [
        {"severity": note[2], "message": f"trainshed reduction: {note[3]}"} for note in seen
    ]
    kept = journal.Entries(str(place.slot)).notes(1)
    assert [(note["n"], note["name"]) for note in kept] == [(1, "mode"), (2, "?late")]


def test_number_and_length_of_notes_in_a_hostile_report_are_limited(place: Place) -> None:
    """spec/reduction#reports: at most twenty notes of 500 characters and one note for each reducer,
    each once. An invalid report is noted once."""
    text = """
open(path, "w").write("no json")
while not os.path.exists("go"): time.sleep(0.01)
os.unlink(path)
loud = [("n%d" % number, "LOUD", "x" * 9999) for number in range(90)]
report(loud)
"""
    line = run(place, REPORT + text)
    first = line.hear("note")
    assert (first["name"], first["severity"]) == ("unreadable", "WARNING")
    (place.slot / protocol.FILES / "work" / "go").touch()
    seen = notes(line)
    assert len(seen) == reduction_reports.MAX_NOTES + 3
    assert {(note[2], len(note[3])) for note in seen} == {("INFO", 500)}


def test_secrets_in_reports_are_redacted(place: Place) -> None:
    line = run(place, REPORT + 'report([("a", "INFO", "it is hunter2!")])', masked=("hunter2",))
    assert notes(line)[0][3] == "it is ***!"


def test_unused_reducers_cause_a_note_at_the_end(place: Place) -> None:
    """spec/reduction#frameworks: reducers are never idle silently, even in a short job. The note is
    reported and stored before the end."""
    line = run(place, "pass", reducers_expected=True)
    ((number, name, severity, text),) = notes(line)
    assert (number, name, severity) == (1, reduction_reports.UNUSED, "WARNING")
    assert "ended without using the job's reducers" in text
    assert [note["text"] for note in journal.Entries(str(place.slot)).notes(1)] == [text]
    assert service_lines(place)[-1]["message"].endswith(text)
