"""Units, which are finished directories such as environments, that a node's cache finds on its disk."""

import threading
from pathlib import Path

from trainshed.runtimes.shelf import SETTLING, Shelf
from trainshed_cluster.remote.content.manifest import Unit
from trainshed_cluster.remote.content.node_units import NodeUnits


def test_directory_in_a_cache_shared_with_the_service_counts_as_finished(tmp_path: Path) -> None:
    """A node that sees the cache of a service need not wait until the directory is known to be on disk."""
    place = Shelf(tmp_path / "layers").put("one", Path.mkdir)
    for settling in [thread for thread in threading.enumerate() if thread.name == SETTLING]:
        settling.join()
    unit = Unit(str(place), "digest", 0, ((str(place.parent), 0o755),))
    assert NodeUnits(tmp_path).is_finished(unit)
    (tmp_path / "layers/.marks/one").unlink()
    assert NodeUnits(tmp_path).is_finished(unit)
    (place / ".built").chmod(0o644)
    (place / ".built").write_text(f"another boot\n{place}")
    assert not NodeUnits(tmp_path).is_finished(unit)
