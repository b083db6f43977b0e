"""What real replicas write to their disk is measured and told by their shims (spec/machines#disk)."""

import pytest

from tests.contract.replica.conftest import Place
from trainshed.replica.supervisor import journal, sidecars


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
