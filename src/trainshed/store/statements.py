"""Reads named SQL statements from the `.sql` files of a dialect's folder.

A file holds blocks, each under a line `-- name: something`; other comment lines stay with their block.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

_HEADING = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(package: str, file: str) -> Mapping[str, str]:
    """The statements of `file` in `package` by name. Raises ValueError if a name appears twice."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    parts = _HEADING.split(text)
    statements: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise ValueError(f"{package}/{file} names the statement {name!r} twice; rename one")
        statements[name] = body.strip().removesuffix(";")
    return MappingProxyType(statements)
