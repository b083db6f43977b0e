"""What a node's cache takes of what others have put there."""

import threading
from pathlib import Path

from trainshed.runtimes.shelf import SETTLING, Shelf
from trainshed_cluster.remote.content.manifest import Unit
from trainshed_cluster.remote.content.shelf import NodeShelf


def test_what_a_service_has_just_built_is_finished(tmp_path: Path) -> None:
    """A node that sees the cache of a service need not wait until it is known to be on disk."""
    place = Shelf(tmp_path / "layers").put("one", Path.mkdir)
    for settling in [thread for thread in threading.enumerate() if thread.name == SETTLING]:
        settling.join()
    unit = Unit(str(place), "digest", 0, ((str(place.parent), 0o755),))
    assert NodeShelf(tmp_path).is_finished(unit)
    (tmp_path / "layers/.marks/one").unlink()
    assert NodeShelf(tmp_path).is_finished(unit)
    (place / ".built").chmod(0o644)
    (place / ".built").write_text(f"another boot\n{place}")
    assert not NodeShelf(tmp_path).is_finished(unit)
