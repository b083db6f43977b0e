"""What requests may put into nodes of a metadata store (facts/experiments#limits)."""

from typing import Any

import pytest

from trainshed.api.aiplatform_v1.metadata.nodes import read_fields
from trainshed.core.errors import InvalidRequest
from trainshed.core.metadata import NodeKind
from trainshed.wire import pool


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
    said = str(refused.value)
    assert "_metrics.loss is" in said and "list[0][1] is" in said and " text is" not in said
