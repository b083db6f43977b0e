"""References in pages, docstrings and comments point to existing pages, headings, files, modules and classes.

Citations point to headings of the specification (docs/spec/README.md). The site contains all pages in order,
and a dead link fails its build (docs/adr/0054).
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools import site

ROOT = Path(__file__).parents[2]
TRAINSHED = ROOT / "packages/trainshed/src/trainshed"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_PATH_REFERENCE = re.compile(r"\b(?:docs|tests|tools|packages)/[\w./-]*\w")
_SOURCE_FILES = [
    path for room in ("packages", "tests", "tools", "bench") for path in (ROOT / room).rglob("*.py")
]


@cache
def headings(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return frozenset(map(_slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)))


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    kept = (c for c in plain if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def test_files_named_in_pages_exist() -> None:
    """Paths such as `tests/unit/…` are relative to the checkout. `core/names.py` is a module of the
    package."""
    missing: list[str] = []
    for page in PAGES:
        text = page.read_text()
        running = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        files = {
            ROOT / name
            for name in _PATH_REFERENCE.findall(running)
            if name.isascii() and not re.search("[A-Z]{2}", name)
        }
        modules = {
            TRAINSHED / name
            for name in re.findall(r"`([a-z_]+/[\w/]+\.py)(?:::\w+)?`", text)
            if (TRAINSHED / name.partition("/")[0]).is_dir()
        }
        missing += [f"{page.relative_to(ROOT)}: {path}" for path in files | modules if not path.exists()]
    assert not missing


def test_pages_named_in_the_code_exist() -> None:
    """Messages and docstrings refer to pages of the documentation."""
    names = {
        name for source in _SOURCE_FILES for name in re.findall(r"\bdocs/[\w./-]+\.md\b", source.read_text())
    }
    assert names
    assert not {name for name in names if not (ROOT / name).exists()}


def test_decision_records_named_in_the_code_exist() -> None:
    """`ADR 7` in a docstring refers to a page in docs/adr."""
    numbers = {int(page.name[:4]) for page in (ROOT / "docs/adr").glob("[0-9]*.md")}
    names = {
        int(number)
        for source in [*_SOURCE_FILES, *PAGES]
        for number in re.findall(r"\bADR (\d+)", source.read_text())
    }
    assert names
    assert names <= numbers


def test_tests_of_the_security_page_exist() -> None:
    """Each row's last cell names a test: `FILE::NAME`, or `FILE` for all of it."""
    page = (ROOT / "docs/security.md").read_text()
    page = page.partition("## Attacks and their tests\n")[2]
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


SPEC = ROOT / "docs/spec"
SHELVES = {"spec": SPEC, "facts": SPEC / "facts"}
TREES = ("docs", "packages", "tests", "tools", "bench")
KINDS = {".py", ".md", ".toml", ".sh", ".c", ".sql", ".patch", ".txt"}

CITATION = re.compile(r"(?<![\w/.`-])(spec|facts)/([a-z]\w*)(?:#([\w-]+))?(?![\w/]|\.md)")


def lines() -> Iterator[tuple[Path, str, str]]:
    """Yield (file, position, line) for all lines of text files."""
    for path in sorted(path for tree in TREES for path in (ROOT / tree).rglob("*")):
        if path.suffix in KINDS and path != Path(__file__):
            name = path.relative_to(ROOT)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield path, f"{name}:{number}", line


def test_every_spec_citation_names_an_existing_heading() -> None:
    wrong: list[str] = []
    for _, place, line in lines():
        for shelf, name, heading in CITATION.findall(line):
            page = SHELVES[shelf] / f"{name}.md"
            if not page.is_file() or (heading and heading not in headings(page)):
                wrong.append(f"{place}: {shelf}/{name}#{heading}")
    assert not wrong


PACKAGES = {path.parent.name for path in TRAINSHED.glob("*/__init__.py")}
#: Packages of the other distributions, which texts only mention as a whole.
OTHERS = {path.name: path for path in (ROOT / "packages").glob("*/src/*")}

#: A dotted name in backticks, such as `core.study.records.Trial`, with or without the prefix `trainshed.`.
MODULE_REFERENCE = re.compile(r"`(?:trainshed\.)?([a-z]\w*(?:\.\w+)+)(?:\(\))?`")
#: Endings of file names, such as `buckets.sock`.
FILES = {"sock", "toml", "md", "py", "json", "jsonl", "log", "db"}
#: Decision records describe older code, and other distributions name their own modules.
SKIPPED_DIRECTORIES = {"adr", "trainshed_reduction"}


@cache
def module_exists(name: str) -> bool:
    place, parts = TRAINSHED, name.split(".")
    while parts and (place / parts[0] / "__init__.py").is_file():
        place /= parts.pop(0)
    if parts and (module := place / f"{parts[0]}.py").is_file():
        parts.pop(0)
    else:
        module = place / "__init__.py"
    text = module.read_text()
    return all(re.search(rf"\b{part}\b", text) for part in parts)


def test_modules_named_in_texts_exist() -> None:
    wrong: list[str] = []
    for path, place, line in lines():
        if path.suffix not in (".py", ".md") or SKIPPED_DIRECTORIES & {*path.parts}:
            continue
        for name in MODULE_REFERENCE.findall(line):
            package, last = name.split(".")[0], name.split(".")[-1]
            if package in PACKAGES and last not in FILES and not module_exists(name):
                wrong.append(f"{place}: {name}")
    assert not wrong, "\n".join(wrong)


#: A row of the glossary: the term, its meaning, and the packages that use it.
ROW = re.compile(r"^\| (?P<term>\w[^|(]*?)(?: \([^|]*\))? \| .+ \| (?P<packages>`.+`) \|$", re.MULTILINE)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def test_glossary_classes_are_in_the_listed_packages() -> None:
    """Glossary terms with a capital letter are classes."""
    homes: dict[str, set[str]] = {}
    places = {name: TRAINSHED / name for name in PACKAGES} | OTHERS
    for package, place in places.items():
        for path in place.rglob("*.py"):
            for name in CLASS.findall(path.read_text()):
                homes.setdefault(name, set()).add(package)
    rows = [*ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]
    assert len(rows) > 60
    wrong: list[str] = []
    for row in rows:
        packages = {name.split(".")[0] for name in re.findall(r"`([\w.]+)`", row["packages"])}
        result = homes.get(row["term"], set()) if row["term"][0].isupper() else packages
        if not packages <= PACKAGES | OTHERS.keys() or not result & packages:
            wrong.append(f"{row['term']}: {row['packages']}, and it is in {sorted(result)}")
    assert not wrong, "\n".join(wrong)


def test_site_navigation_lists_every_page_once() -> None:
    """Decision records have their own list page."""
    pages = site.pages_in_order()
    there = {
        str(page.relative_to(ROOT))
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if page.parent.name != "adr" or page.name == "README.md"
    }
    assert len(pages) == len(set(pages))
    assert set(pages) == there


def test_state_diagrams_of_a_page_are_converted_to_tables_on_the_site() -> None:
    page = site.diagrams_as_tables(site.with_tables("lifecycle.md", ""))
    assert "mermaid" not in page and "-->" not in page
    assert "| *beginning* | QUEUED |  |" in page
    assert "| PREPARING | RUNNING | all up |" in page
    assert "| FAILED | *end* |  |" in page
