"""Reads the tables shipped in the wheel. Knows where they are, not what they mean.

The files under `data/` hold public facts only; each catalog module gives its own table types and says which
section of the facts it follows.
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
