"""Tests that modules for the interpreters of runtimes and images support Python 3.6, and import only the
standard library."""

import ast
import sys
from pathlib import Path

import pytest

import trainshed

ROOT = Path(trainshed.__path__[0]).parent
PROGRAMS = ("trainshed.replica.preloader.forking", "trainshed.runtimes.images.executor")


def _file(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if name and path.exists():
            return path
    return None


def find_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _closure() -> dict[str, Path]:
    files: dict[str, Path] = {}
    left: list[str] = [*PROGRAMS]
    while left:
        name = left.pop()
        path = _file(name)
        if path is None or name in files:
            continue
        files[name] = path
        left += sorted(find_imports(path))
        left.append(name.rpartition(".")[0])
    return files


CLOSURE = _closure()


@pytest.mark.parametrize("path", CLOSURE.values(), ids=CLOSURE.keys())
def test_replica_module_runs_on_python_3_6_and_imports_only_the_standard_library(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))
    for name in find_imports(path):
        root = name.split(".")[0]
        assert root in sys.stdlib_module_names or name.startswith("trainshed.replica"), name
