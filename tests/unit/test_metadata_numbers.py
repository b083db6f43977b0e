"""Numbers that go into nodes of a metadata store (facts/experiments#limits)."""

from typing import Any

import pytest

from trainshed.api.aiplatform_v1.metadata import read_node
from trainshed.core.errors import InvalidRequest
from trainshed.core.metadata import NodeKind, NodeName, StoreName
from trainshed.wire import pool

CONTEXT = NodeName(StoreName("p", "us-central1", "default"), NodeKind.CONTEXT, "run")


def test_numbers_are_finite() -> None:
    """Over REST there is no way to send others; over gRPC a Struct takes them."""
    message: Any = pool.message_class("google.cloud.aiplatform.v1.Context")()
    wrong = {"_metrics": {"loss": float("nan")}, "list": [[1, float("inf")]]}
    message.metadata.update({"fine": 1.5, "text": "NaN", **wrong})
    with pytest.raises(InvalidRequest) as refused:
        read_node(CONTEXT, message, 0)
    assert {violation.field for violation in refused.value.violations} == {"context.metadata"}
    text = str(refused.value)
    assert "_metrics.loss is" in text and "list[0][1] is" in text and " text is" not in text
