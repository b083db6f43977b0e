"""docs/architecture.md matches the source, and the source follows rules that linters do not check."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAINSHED = ROOT / "packages/trainshed/src/trainshed"
PACKAGES = sorted(p.parent for p in TRAINSHED.glob("*/__init__.py"))
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))

TASK_MAKERS = ("create_task", "ensure_future", "run_coroutine_threadsafe")


def package_docstring(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert docstring, f"{package.name} has no charter"
    first, _, rest = docstring.partition("\n")
    assert not rest or rest.startswith("\n"), f"{package.name}'s charter is longer than a line"
    return first


def test_package_table_in_the_docs_matches_package_docstrings() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE))
    assert table == {package.name: package_docstring(package) for package in PACKAGES}


def test_code_reading_tours_in_the_architecture_page_list_existing_modules() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## Two walks")[2]
    walks = page.partition("## Distributions")[0].split("### ")[1:]
    assert len(walks) == 2
    for walk in walks:
        modules = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", walk, re.MULTILINE)
        assert 20 < len(set(modules)) == len(modules) <= 30
        assert all((TRAINSHED / module).is_file() for module in modules)


def test_asyncio_tasks_are_created_only_by_the_background_module() -> None:
    """docs/adr/0042: no other module creates asyncio tasks, so that every failure of a task is reported."""
    background = TRAINSHED / "eventloop/background.py"
    texts = ((path, path.read_text()) for path in SOURCES)
    result = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in texts
        # Parsing all sources would take seconds.
        if any(name in text for name in TASK_MAKERS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute | ast.alias)
        and (node.attr if isinstance(node, ast.Attribute) else node.name) in TASK_MAKERS
        and path != background
    ]
    assert not result, f"use trainshed.eventloop.background here: {result}"


def test_decision_records_are_numbered_few_and_short() -> None:
    """Outdated records are deleted. The record about starts is complete and may be longer than the others."""
    pages = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    assert len(pages) <= 50
    numbers = [int(page.name.partition("-")[0]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    for number, page in zip(numbers, pages, strict=True):
        text = page.read_text()
        assert text.startswith(f"# {number}. ")
        assert "Status: accepted" in text
        limit = 600 if page.name == "0083-starts.md" else 300
        assert len(text.split()) <= limit, f"{page.name} is longer than {limit} words"
