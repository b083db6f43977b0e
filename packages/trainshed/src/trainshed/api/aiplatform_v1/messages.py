"""Builds messages of `aiplatform` v1."""

from typing import Any, Final

from trainshed.wire import pool

V1: Final = "google.cloud.aiplatform.v1"


def message(kind: str, **fields: Any) -> Any:
    """Return a message of the API, such as `ListModelsResponse`, with these fields."""
    return pool.message(f"{V1}.{kind}", **fields)
