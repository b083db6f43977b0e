"""What real replicas write to their disk is measured and told by their shims (spec/machines#disk)."""

import json
import signal
from typing import Any

import pytest

from tests.contract.replica.conftest import Line, Place
from trainshed.replica import protocol
from trainshed.replica.observe import disk, usage
from trainshed.replica.supervisor import journal, sidecars
from trainshed.replica.supervisor.clients import connect

MIB = 1 << 20
LIMIT = 10 * MIB
_WRITES = """
import os, time
def write(path, size):
    with open(path, "wb") as file:
        file.write(os.urandom(1 << 20) * size)
write("first", 9)
while not os.path.exists("go"):
    time.sleep(0.01)
os.mkdir("below")
write("below/second", 4)
time.sleep(99)
"""


def told(line: Line) -> list[str]:
    """The names of all notes until the program's end but of those on the machine's own room."""
    names: list[str] = []
    while (message := line.hear("note", "exited", "lost", "refused"))["e"] == "note":
        names.append(message["name"])
    assert message["e"] == "exited", message
    return [name for name in names if name in (disk.NEARLY_FULL, disk.FULL)]


def hear(line: Line, name: str) -> dict[str, Any]:
    while (message := line.hear("note"))["name"] != name:
        pass
    return message


def samples(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.logs / usage.FILE).read_text().splitlines()]


def test_a_program_that_fills_its_disk_is_told_of_while_it_runs(place: Place) -> None:
    """spec/machines#disk: watched, warned about; at every level, whoever owns the files."""
    line = place.python(_WRITES, usage_every=0.05, disk_limit=LIMIT)
    first = hear(line, disk.NEARLY_FULL)
    assert first["severity"] == "WARNING"
    (place.slot / protocol.FILES / "work" / "go").touch()
    hear(line, disk.FULL)
    line.order(o="stop", grace=0)
    assert told(line) == []
    kept = journal.Entries(str(place.slot)).notes(1)
    assert [n["name"] for n in kept if n["name"] in (disk.NEARLY_FULL, disk.FULL)] == [
        disk.NEARLY_FULL,
        disk.FULL,
    ]
    assert [note["n"] for note in kept] == [*range(1, len(kept) + 1)]
    assert LIMIT <= samples(place)[-1]["disk"] < 15 * MIB


def test_a_restart_in_place_begins_with_what_was_left(place: Place) -> None:
    """Each incarnation is told of, with notes of its own."""
    for program in ("open('big', 'wb').write(bytes(11 << 20)); ", ""):
        waits = f"{program}import time; time.sleep(99)"
        line = place.python(waits, usage_every=0.05, disk_limit=LIMIT)
        assert hear(line, disk.FULL)["severity"] == "WARNING"
        line.order(o="stop", grace=0)
        line.record()
    entries = journal.Entries(str(place.slot))
    kept = [[note["name"] for note in entries.notes(number)] for number in (1, 2)]
    assert [names.count(disk.FULL) for names in kept] == [1, 1]


def test_who_comes_later_is_told_again(place: Place) -> None:
    line = place.python(_WRITES, usage_every=0.05, disk_limit=LIMIT)
    hear(line, disk.NEARLY_FULL)
    other = Line(connect(str(place.slot)))
    hear(other, disk.NEARLY_FULL)
    line.order(o="stop", grace=0)
    line.record()


def test_nobody_measures_unless_asked(place: Place) -> None:
    line = place.python("open('big', 'wb').write(bytes(11 << 20))", disk_limit=LIMIT)
    assert told(line) == []


def test_one_whose_files_take_more_than_its_disk_is_ended_where_that_is_wanted(
    place: Place,
) -> None:
    line = place.python(
        "open('big', 'wb').write(bytes(11 << 20)); import time; time.sleep(99)",
        disk_limit=LIMIT,
        disk_enforced=True,
    )
    note = hear(line, disk.EXCEEDED)
    assert note["severity"] == "WARNING"
    assert "it is ended" in note["text"]
    record = line.record()
    assert (record["signal"], record["out_of_disk"]) == (signal.SIGKILL, True)


def test_one_that_ended_before_it_was_looked_at_is_no_one_who_was_ended(place: Place) -> None:
    program = "open('big', 'wb').write(bytes(11 << 20))"
    record = place.python(program, disk_limit=LIMIT, disk_enforced=True).record()
    assert (record["exit_code"], record["out_of_disk"]) == (0, False)


@pytest.mark.parametrize("makes", [True, False])
def test_a_directory_that_was_taken_for_a_bucket_is_told_of_at_the_end(
    place: Place, makes: bool
) -> None:
    """The program succeeds, and what it wrote is gone with the replica."""
    line = place.python("import os; os.makedirs('gs://b/model')" if makes else "pass")
    names: list[str] = []
    while (message := line.hear("note", "exited"))["e"] == "note":
        names.append(message["name"])
    assert (sidecars.WRITTEN_HERE in names) is makes
    kept = journal.Entries(str(place.slot)).notes(1)
    assert (sidecars.WRITTEN_HERE in [note["name"] for note in kept]) is makes
