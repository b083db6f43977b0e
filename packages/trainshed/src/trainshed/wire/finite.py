"""Finds numbers in JSON values of requests that JSON cannot express, which only gRPC can carry."""

import math
from collections.abc import Iterator
from typing import Any


def endless(value: Any) -> Iterator[str]:
    """Yield the paths (`a.b[1]`) of the numbers in a google.protobuf.Value, or Struct, that are NaN or
    infinite; "" for the value itself."""
    for path in _endless(value):
        yield path.removeprefix(".")


def _endless(value: Any) -> Iterator[str]:
    if value.DESCRIPTOR.name == "Struct":
        for key, part in value.fields.items():
            yield from (f".{key}{path}" for path in _endless(part))
        return
    match value.WhichOneof("kind"):
        case "number_value" if not math.isfinite(value.number_value):
            yield ""
        case "struct_value":
            yield from _endless(value.struct_value)
        case "list_value":
            for index, part in enumerate(value.list_value.values):
                yield from (f"[{index}]{path}" for path in _endless(part))
        case _:
            pass
