"""The pages of the documentation lead to each other, and to files that are there."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINSHED = ROOT / "packages/trainshed/src/trainshed"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMED = re.compile(r"\b(?:docs|tests|tools|packages)/[\w./-]*\w")
_SOURCES = [
    path for room in ("packages", "tests", "tools", "bench") for path in (ROOT / room).rglob("*.py")
]


@cache
def anchors(page: Path) -> frozenset[str]:
    """What the headings of a page are called in addresses."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return frozenset(map(_slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)))


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    kept = (c for c in plain if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    """Every link to a file, and to a heading of a page, has something at its end."""
    dead: list[str] = []
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        goal = (page.parent / name).resolve() if name else page
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            dead.append(target)
    assert not dead


def test_every_page_can_be_found_from_the_readme() -> None:
    """A newcomer who follows links sees every page."""
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        for target in _LINK.findall(_CODE.sub("", page.read_text())):
            goal = (page.parent / target.partition("#")[0]).resolve()
            if goal.suffix == ".md" and goal.exists() and goal not in seen:
                ahead.append(goal)
    pages = {page for page in PAGES if page.parent != ROOT}
    assert pages <= seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """`tests/unit/…`, `docs/…` and the like in running text are paths of this checkout."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    names = {
        name for name in _NAMED.findall(text) if name.isascii() and not re.search("[A-Z]{2}", name)
    }
    assert not {name for name in names if not (ROOT / name).exists()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    """`core/names.py` in running text is a module of the package."""
    names = {
        name
        for name in re.findall(r"`([a-z_]+/[\w/]+\.py)(?:::\w+)?`", page.read_text())
        if (TRAINSHED / name.partition("/")[0]).is_dir()
    }
    assert not {name for name in names if not (TRAINSHED / name).exists()}


def test_pages_that_the_code_names_are_there() -> None:
    """Messages and docstrings send readers to pages of the documentation."""
    names = {
        name
        for source in _SOURCES
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", source.read_text())
    }
    assert names
    assert not {name for name in names if not (ROOT / name).exists()}


def test_decisions_that_the_code_names_are_there() -> None:
    """`ADR 7` in a docstring means a page."""
    numbers = {int(page.name[:4]) for page in (ROOT / "docs/adr").glob("[0-9]*.md")}
    names = {
        int(number)
        for source in [*_SOURCES, *PAGES]
        for number in re.findall(r"\bADR (\d+)", source.read_text())
    }
    assert names
    assert names <= numbers


def test_tests_of_the_security_page_exist() -> None:
    """Each row's last cell names a test: `FILE::NAME`, or `FILE` for all of it."""
    page = (ROOT / "docs/security.md").read_text()
    page = page.partition("## What is tried, and the test that shows it\n")[2]
    rows = [row for row in page.splitlines() if row.startswith("|") and not row.startswith("|---")]
    missing: list[str] = []
    for row in rows:
        cell = row.rstrip(" |").rpartition(" | ")[2]
        if cell == "test":
            continue
        names = re.findall(r"`([^`]+)`", cell)
        for file, _, test in (name.partition("::") for name in names):
            path = ROOT / file
            if not path.is_file() or (test and f"def {test}(" not in path.read_text()):
                missing.append(f"{file}::{test}")
        if not names:
            missing.append(row)
    assert len(rows) > 100
    assert not missing
