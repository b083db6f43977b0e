"""Reads the JSON tables that are part of the installed package.

The files below `data/` contain public facts only. Each catalog module defines its own table types and cites
its section of the facts.
"""

import functools
import json
from pathlib import Path
from typing import Any, Final

_DATA: Final = Path(__file__).with_name("data")


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the cached content of `data/<name>.json`. Callers must not change it."""
    return json.loads((_DATA / f"{name}.json").read_bytes())
