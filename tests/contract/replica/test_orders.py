"""Orders of a service to a shim, and notes of a shim at the end (spec/failures#lost-replicas)."""

import pytest

from tests.contract.replica.conftest import Place
from trainshed.replica.supervisor import journal, sidecars

FLOODS = "import sys\nwhile True: sys.stdout.write('x' * 60 + '\\n')"


def test_shim_answers_a_ping_during_a_flood_of_output(place: Place) -> None:
    line = place.python(FLOODS)
    place.up(line)
    for number in range(20):
        line.order(o="ping", n=number)
        assert line.hear("pong")["n"] == number
    line.order(o="stop", grace=0)
    assert line.record()["log_lines"] > 0


@pytest.mark.parametrize("makes", [True, False])
def test_local_directory_named_like_a_bucket_causes_a_note(place: Place, makes: bool) -> None:
    """The program succeeds, but its files are deleted with the replica."""
    line = place.python("import os; os.makedirs('gs://b/model')" if makes else "pass")
    names: list[str] = []
    while (message := line.hear("note", "exited"))["e"] == "note":
        names.append(message["name"])
    assert (sidecars.LOCAL_GS_DIRECTORY in names) is makes
    kept = journal.Entries(str(place.slot)).notes(1)
    assert (sidecars.LOCAL_GS_DIRECTORY in [note["name"] for note in kept]) is makes
