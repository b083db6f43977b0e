"""A service that starts on a completely full disk. `tests/contract/replica/test_exhausted_resources.py` tests
programs on a full disk, `tests/contract/store/test_store_sqlite.py` the store.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of, fill
from tests.e2e.running import running, trainshed


@pytest.fixture
def place() -> Iterator[Path]:
    """A file system of 24 MB."""
    with (
        tempfile.TemporaryDirectory(prefix="trainshed-small-") as root,
        disk_of("size=24m,mode=755", Path(root, "disk")) as small,
    ):
        yield small


def test_trainshed_up_on_a_full_disk_prints_a_single_line_error(place: Path) -> None:
    """The data directory has a database or none. When space is free, the service starts again."""
    places = (place / "old", place / "fresh")
    with running(places[0]):
        pass
    filler = fill(place)
    for data in places:
        words = ("up", "--port", "0", "--data", str(data))
        refused = trainshed(*words, data=data, status=1)
        assert refused.stderr.splitlines() == [
            f"Error: The disk of the data directory {data} is full, so the service cannot store anything. "
            "Free some space and start it again. Running programs wait for space and lose nothing."
        ]
    # Its background messages cannot be stored either.
    refused = trainshed("up", "--detach", data=places[1], status=1)
    assert f"full disk; to see the cause: trainshed up --data {places[1]}" in refused.stderr
    filler.unlink()
    for data in places:
        with running(data):
            pass
