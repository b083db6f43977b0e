"""Room `replica` runs wherever a replica does: old interpreters, no library, no service beside it."""

import ast
import sys
from pathlib import Path

import pytest

import trainshed.replica

MODULES = sorted(Path(trainshed.replica.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_source_is_python_3_6_and_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name == "sitecustomize":
                continue  # The interpreter's own, if it has one.
            root = name.split(".")[0]
            assert root in sys.stdlib_module_names or name.startswith("trainshed.replica"), name
