"""gsutil runs by the Python of any runtime: old interpreters, and no library."""

import ast
import sys
from pathlib import Path

import pytest

import trainshed_gsutil

MODULES = sorted(Path(trainshed_gsutil.__path__[0]).rglob("*.py"))
_OPTIONAL = {"google_crc32c"}
"""Taken where the Python that runs it has it."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_source_is_python_3_6_and_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            root = name.split(".")[0]
            assert root in sys.stdlib_module_names | {"trainshed_gsutil"} | _OPTIONAL, name
