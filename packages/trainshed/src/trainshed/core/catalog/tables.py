"""Reads the tables of the wheel. Contains their locations, but not their meaning.

The files below `data/` contain public facts only. Each catalog module defines its own table types
and cites its section of the facts.
"""

import functools
import json
from pathlib import Path
from typing import Any, Final

_DATA: Final = Path(__file__).with_name("data")


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the content of `data/<name>.json`, which is read once. Callers must not change it."""
    return json.loads((_DATA / f"{name}.json").read_bytes())
