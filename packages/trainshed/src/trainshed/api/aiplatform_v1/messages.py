"""Builds messages of `aiplatform` v1."""

from typing import Any, Final

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.wire import pool

V1: Final = "google.cloud.aiplatform.v1"


def message(kind: str, **fields: Any) -> Any:
    """Return a message of the API, such as `ListModelsResponse`, with these fields."""
    return pool.message(f"{V1}.{kind}", **fields)


def refuse_key(resource: Any, field: str) -> None:
    """Refuse the resource in a request's `field` if a key of its owner's is to encrypt it. Raises
    InvalidRequest."""
    if resource.HasField("encryption_spec"):
        text = "Keys of customers are not served here; leave it out."
        raise InvalidRequest((Violation(f"{field}.encryption_spec", text),))
