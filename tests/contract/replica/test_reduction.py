"""What reducers and workers report reaches log, journal and listeners of a real shim
(spec/reduction#reports)."""

import json
import os
import signal
from typing import Any

import pytest

from tests.contract.replica.conftest import Line, Place
from trainshed.core.environment import REDUCTION_REPORT
from trainshed.core.launch import REDUCTION_REPORT_FILE
from trainshed.engines.local.link import connect
from trainshed.replica import protocol
from trainshed.replica.observe import reduction_reports
from trainshed.replica.supervisor import journal, program

REPORT = """
import json, os, time
path = os.environ["TRAINSHED_REDUCTION_REPORT_FILE"]
def report(notes=(), **metrics):
    keys = ("id", "severity", "text")
    with open(path + ".own", "w") as file:
        json.dump({"notes": [dict(zip(keys, note)) for note in notes], "metrics": metrics}, file)
    os.replace(path + ".own", path)
MODE = ("mode", "INFO", "pure: 4 reducers")
"""
_LOADS = """
import mmap, os, time
def load(name):
    with open(name, "wb+") as file:
        file.write(b"x")
        file.flush()
        return mmap.mmap(file.fileno(), 1)
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
    found: list[tuple[int, str, str, str]] = []
    while (message := line.hear("note", "exited", "lost", "refused"))["e"] == "note":
        found.append((message["n"], message["name"], message["severity"], message["text"]))
    assert message["e"] == "exited", message
    return found


def verdict(line: Line) -> dict[str, str]:
    """What is said of the program in the end; on a busy machine it may be slow to begin."""
    while (message := line.hear("note"))["name"] == reduction_reports.SILENCE:
        pass
    assert (message["name"], message["severity"]) == (reduction_reports.VERDICT, "WARNING")
    return message


def metrics(place: Place) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (place.logs / reduction_reports.FILE).read_text().splitlines()
    ]


def said(place: Place) -> list[dict[str, str]]:
    """The lines that the service itself wrote to the log."""
    return [json.loads(str(line["m"])) for line in place.log() if line["s"] == "b"]


def test_a_note_is_told_kept_and_written_to_the_log_once(place: Place) -> None:
    """spec/reduction#reports: whatever the program's user is, its reports are seen; in the log with how bad
    they are."""
    late = '("late", "WARNING", "rank 3\\n waits")'
    line = run(place, f"{REPORT}report([MODE]); report([MODE]); report([MODE, {late}], sent=7)")
    told = notes(line)
    assert told == [(1, "mode", "INFO", "pure: 4 reducers"), (2, "late", "WARNING", "rank 3 waits")]
    assert said(place) == [
        {"severity": each[2], "message": f"trainshed reduction: {each[3]}"} for each in told
    ]
    kept = journal.Entries(str(place.slot)).notes(1)
    assert [(each["n"], each["name"]) for each in kept] == [(1, "mode"), (2, "late")]
    started, *_, last = metrics(place)
    assert started["incarnation"] == 1
    assert (last["metrics"], last["last"]) == ({"sent": 7}, True)


def test_who_comes_later_is_told_again(place: Place) -> None:
    line = run(place, REPORT + "report([MODE]); time.sleep(99)")
    assert line.hear("note")["n"] == 1
    other = Line(connect(place.slot))
    assert other.hear("note")["name"] == "mode"
    line.order(o="stop", grace=0)
    line.record()


def test_a_restart_in_place_reports_anew(place: Place) -> None:
    """What an earlier incarnation left in the file is not the later one's."""
    first = run(place, REPORT + "report([MODE], sent=1)")
    assert len(notes(first)) == 1
    second = run(place, "print(1)")
    assert notes(second) == []
    third = run(place, REPORT + "report([MODE], sent=3)")
    assert [each[0] for each in notes(third)] == [1]
    entries = journal.Entries(str(place.slot))
    assert [len(entries.notes(number)) for number in (1, 2, 3)] == [1, 0, 1]
    assert [each["incarnation"] for each in metrics(place) if "started" in each] == [1, 2, 3]


def test_a_hostile_report_is_bounded(place: Place) -> None:
    """spec/reduction#reports: twenty notes of five hundred characters and one for each reducer, once each;
    what is no report is said once."""
    text = """
open(path, "w").write("no json"); time.sleep(0.3); os.unlink(path)
loud = [("n%d" % number, "LOUD", "x" * 9999) for number in range(90)]
report(loud, sent=float("nan"), of=[1, "2"], ok=[1, 2.5])
"""
    told = notes(run(place, REPORT + text))
    assert len(told) == reduction_reports.MOST_NOTES + 4
    assert told[0][1:3] == ("unreadable", "WARNING")
    assert {(each[2], len(each[3])) for each in told[1:]} == {("INFO", 500)}
    assert metrics(place)[-1]["metrics"] == {"ok": [1, 2.5]}


def test_a_link_to_somebody_elses_file_is_not_followed(place: Place) -> None:
    text = "os.symlink('/etc/hostname', path); time.sleep(0.3)"
    (told,) = notes(run(place, REPORT + text))
    assert told[1] == "unreadable" and "link" in told[3]


def test_secrets_are_not_taken_down(place: Place) -> None:
    line = run(place, REPORT + 'report([("a", "INFO", "it is hunter2!")])', masked=("hunter2",))
    assert notes(line)[0][3] == "it is ***!"


def test_notes_outlive_their_shim(place: Place) -> None:
    """spec/reduction#losses: who finds the slot later finds what was noted."""
    line = run(place, REPORT + "report([MODE]); time.sleep(99)")
    line.hear("note")
    os.kill(place.journal()["shim"], signal.SIGKILL)
    with pytest.raises(EOFError):
        line.hear("exited")
    assert [each["name"] for each in journal.Entries(str(place.slot)).notes(1)] == ["mode"]


def test_tensorflow_is_told_that_the_reducers_idle(place: Place) -> None:
    """spec/reduction#frameworks: never silently idle reducers; told once, in words that say what to do."""
    load = "held = load('libtensorflow_framework.so.2'); time.sleep(99)"
    line = run(place, _LOADS + load, verdict_after=0.05)
    text = verdict(line)["text"]
    assert "TensorFlow" in text and "the 4 reducers stay idle" in text
    line.order(o="stop", grace=0)
    assert notes(line) == []


def test_a_program_that_has_its_way_is_not_looked_at(place: Place) -> None:
    load = "held = load('libtensorflow_framework.so.2'); time.sleep(0.5)"
    line = run(place, REPORT + "report([MODE])" + _LOADS + load, verdict_after=0.1)
    assert {each[1] for each in notes(line)} - {reduction_reports.SILENCE} == {"mode"}


def test_a_plug_in_that_waits_for_its_group_is_left_in_peace(place: Place) -> None:
    """It says that it is there by numbers alone; Horovod, which rides on PyTorch, is named all the same."""
    loads = REPORT + _LOADS + "report(operations=0); held = load('libtorch_cpu.so')\n"
    line = run(place, loads + "time.sleep(0.6)", verdict_after=0.1)
    assert {each[1] for each in notes(line)} <= {reduction_reports.SILENCE}
    more = "os.mkdir('horovod'); more = load('horovod/mpi_lib.so'); time.sleep(99)"
    line = run(place, loads + more, verdict_after=0.1)
    assert "Horovod" in verdict(line)["text"]
    line.order(o="stop", grace=0)
    line.record()


def test_a_child_that_loads_pytorch_counts_as_well(place: Place) -> None:
    """As torchrun has it: the processes that compute are children of the program."""
    child = _LOADS + "held = load('libtorch_cpu.so'); time.sleep(99)"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    line = run(place, text, verdict_after=0.05)
    assert "plug-in" in verdict(line)["text"]
    line.order(o="stop", grace=0)
    line.record()


def test_nobody_looks_where_there_are_no_reducers(place: Place) -> None:
    load = "held = load('libtensorflow_framework.so.2'); report([MODE]); time.sleep(0.3)"
    line = run(place, REPORT + _LOADS + load, reducers=0, verdict_after=0.05)
    assert notes(line) == []
    assert not (place.logs / reduction_reports.FILE).exists()


@pytest.mark.parametrize(
    ("program", "after"),
    [("time.sleep(1); raise SystemExit(1)", 3), ("time.sleep(0)", 600)],
    ids=["it had the time", "it succeeds at once"],
)
def test_reducers_that_were_never_used_are_told_of_at_the_end(
    place: Place, program: str, after: float
) -> None:
    """spec/reduction#frameworks: never silently idle reducers, however short the job: told and kept before
    the end is."""
    line = run(place, f"import time; {program}", verdict_after=after)
    ((number, name, severity, text),) = notes(line)
    assert (number, name, severity) == (1, reduction_reports.UNUSED, "WARNING")
    assert "ended without using the job's 4 reducers" in text
    assert [each["text"] for each in journal.Entries(str(place.slot)).notes(1)] == [text]
    assert said(place)[-1]["message"].endswith(text)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("time.sleep(0.3); report(operations=0)", 1),
        ("time.sleep(0.3)", 0),
        ("raise SystemExit(1)", 600),
    ],
    ids=["the plug-in is there", "nobody looks", "it fails at once"],
)
def test_an_end_that_says_nothing_of_reducers(place: Place, text: str, after: float) -> None:
    assert notes(run(place, f"{REPORT}{text}", verdict_after=after)) == []
