"""What a service can ask of a shim, and what a shim notes at the end (spec/failures#lost-replicas)."""

import os
import signal

import pytest

from tests.contract.replica.conftest import Place
from trainshed.replica.supervisor import journal, sidecars

SLEEPS = "import time; print('up'); time.sleep(60)"
FLOODS = "import sys\nwhile True: sys.stdout.write('x' * 60 + '\\n')"


def test_a_ping_is_answered_while_output_floods(place: Place) -> None:
    line = place.python(FLOODS)
    place.up(line)
    for number in range(20):
        line.order(o="ping", n=number)
        assert line.hear("pong")["n"] == number
    line.order(o="stop", grace=0)
    assert line.record()["log_lines"] > 0


def test_a_guardian_that_does_not_listen_does_not_keep_its_program(place: Place) -> None:
    """spec/lifecycle#cancel: leaves no process behind, whatever holds it up."""
    line = place.python(SLEEPS)
    place.up(line)
    os.kill(place.journal()["guardian"], signal.SIGSTOP)
    line.order(o="stop", grace=0)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGKILL, True)


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
