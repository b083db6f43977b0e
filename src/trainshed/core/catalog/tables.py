"""Reads the tables shipped in the wheel. Knows their place, not their meaning.

The files under `data/` hold public facts only; each catalog module gives its own table types and
says which section of the facts it stands on.
"""

import functools
import importlib.resources
import json
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The content of `data/<name>.json`, read once. Callers do not change what they get."""
    source = importlib.resources.files("trainshed.core.catalog").joinpath("data", f"{name}.json")
    return json.loads(source.read_text("utf-8"))
