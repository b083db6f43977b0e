"""How names of nodes and of what tensorboards have are read."""

from trainshed_tracking.metadata.records import NodeKind, NodeName
from trainshed_tracking.tensorboards.records import BoardName, Level

HERE = "projects/p/locations/l"


def test_parts_of_names_are_read() -> None:
    series = f"{HERE}/tensorboards/b/experiments/e/runs/r/timeSeries/t"
    assert BoardName.parse(series, Level.SERIES).ids == ("b", "e", "r", "t")
    node = f"{HERE}/metadataStores/default/contexts/c"
    assert str(NodeName.parse(node, NodeKind.CONTEXT)) == node
