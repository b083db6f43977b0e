"""What reducers and workers report reaches log, journal and listeners of a real shim
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
    """A program that knows where to report, in a slot of a job with four reducers."""
    files = place.slot / protocol.FILES
    path = str(files / program.HYPERTUNE / reduction_reports.PROGRAM_FILE)
    if place.level != protocol.LEVEL_SESSION:
        path = REDUCTION_REPORT
    environ = {"PATH": os.environ["PATH"], REDUCTION_REPORT_FILE: path}
    return place.python(text, **{"environ": environ, "reducers": 4, **fields})


def notes(line: Line) -> list[tuple[int, str, str, str]]:
    """All that the shim tells of one program, from its start to its end."""
    notes: list[tuple[int, str, str, str]] = []
    while (message := line.hear("note", "exited", "lost", "refused"))["e"] == "note":
        notes.append((message["n"], message["name"], message["severity"], message["text"]))
    assert message["e"] == "exited", message
    return notes


def said(place: Place) -> list[dict[str, str]]:
    """The lines that the service itself wrote to the log."""
    return [json.loads(str(line["m"])) for line in place.log() if line["s"] == "b"]


def test_a_note_is_told_kept_and_written_to_the_log_once(place: Place) -> None:
    """spec/reduction#reports: whatever the program's user is, its reports are seen; in the log with how bad
    they are."""
    late = '("\\ud800late", "WARNING", "rank 3\\n waits")'
    line = run(place, f"{REPORT}report([MODE]); report([MODE]); report([MODE, {late}])")
    seen = notes(line)
    mode, late = (1, "mode", "INFO", "pure: 4 reducers"), (2, "?late", "WARNING", "rank 3 waits")
    assert seen == [mode, late]
    assert said(place) == [
        {"severity": note[2], "message": f"trainshed reduction: {note[3]}"} for note in seen
    ]
    kept = journal.Entries(str(place.slot)).notes(1)
    assert [(note["n"], note["name"]) for note in kept] == [(1, "mode"), (2, "?late")]


def test_a_hostile_report_is_bounded(place: Place) -> None:
    """spec/reduction#reports: twenty notes of five hundred characters and one for each reducer, once each;
    what is no report is said once."""
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


def test_secrets_are_not_taken_down(place: Place) -> None:
    line = run(place, REPORT + 'report([("a", "INFO", "it is hunter2!")])', masked=("hunter2",))
    assert notes(line)[0][3] == "it is ***!"


def test_reducers_that_were_never_used_are_told_of_at_the_end(place: Place) -> None:
    """spec/reduction#frameworks: never silently idle reducers, however short the job: told and kept before
    the end is."""
    line = run(place, "pass", reducers_expected=True)
    ((number, name, severity, text),) = notes(line)
    assert (number, name, severity) == (1, reduction_reports.UNUSED, "WARNING")
    assert "ended without using the job's reducers" in text
    assert [note["text"] for note in journal.Entries(str(place.slot)).notes(1)] == [text]
    assert said(place)[-1]["message"].endswith(text)
