"""What goes into nodes of a metadata store: values of two writers of one run (facts/experiments#etags), and
numbers (facts/experiments#limits)."""

from typing import Any

import pytest

from trainshed.api.aiplatform_v1.metadata.nodes import read_fields
from trainshed.core.errors import InvalidRequest
from trainshed.core.metadata import (
    EXPERIMENT_RUN,
    Node,
    NodeKind,
    NodeName,
    StoreName,
    changed,
    merged,
)
from trainshed.wire import pool

NAME = NodeName(StoreName("p", "us-central1", "default"), NodeKind.CONTEXT, "e-r")


def run(**metadata: Any) -> Node:
    node = Node(NAME, created=1, updated=1, etag=10, schema_title=EXPERIMENT_RUN)
    return changed(node, metadata, 10)


def test_keys_of_both_writers_stay() -> None:
    start = run(_params={"lr": 1}, _metrics={}, _state="RUNNING")
    ours = changed(start, {**start.metadata, "_metrics": {"acc": 0.5}}, 11)
    theirs = {"_params": {"lr": 1, "depth": 3}, "_metrics": {}, "_state": "RUNNING"}
    assert merged(ours, theirs, 10) == {
        "_params": {"lr": 1, "depth": 3},
        "_metrics": {"acc": 0.5},
        "_state": "RUNNING",
    }


def test_a_repeated_old_value_does_not_undo_what_another_has_changed() -> None:
    start = run(_metrics={"acc": 0.1}, _state="RUNNING")
    ours = changed(start, {"_metrics": {"acc": 0.9}, "_state": "COMPLETE"}, 11)
    theirs = {"_metrics": {"acc": 0.1, "loss": 2}, "_state": "RUNNING"}
    assert merged(ours, theirs, 10) == {"_metrics": {"acc": 0.9, "loss": 2}, "_state": "COMPLETE"}


def test_numbers_are_finite() -> None:
    """Over REST there is no way to send others; over gRPC a Struct takes them."""
    message: Any = pool.message_class("google.cloud.aiplatform.v1.Context")()
    message.metadata.update(
        {
            "fine": 1.5,
            "_metrics": {"loss": float("nan")},
            "list": [[1, float("inf")]],
            "text": "NaN",
        }
    )
    with pytest.raises(InvalidRequest) as refused:
        read_fields(message, NodeKind.CONTEXT)
    assert {violation.field for violation in refused.value.violations} == {"context.metadata"}
    text = str(refused.value)
    assert "_metrics.loss is" in text and "list[0][1] is" in text and " text is" not in text
