"""Reads the tables shipped in the wheel. Knows where they are, not what they mean.

The files under `data/` hold public facts only; each catalog module gives its own table types and says which
section of the facts it follows.
"""

import functools
import json
import pkgutil
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the content of `data/<name>.json`, which is read once. Callers must not change it.

    Raise OSError if the file is missing, LookupError if this Python cannot read data files of packages.
    """
    text = pkgutil.get_data("trainshed.core.catalog", f"data/{name}.json")
    if text is None:
        raise LookupError(
            f"the table {name!r} cannot be read: trainshed is loaded in a way that hides its data files; "
            "install it as a wheel or run it from its source tree"
        )
    return json.loads(text)
