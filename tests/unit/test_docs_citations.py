"""Citations of the specification lead to headings that are there (docs/spec/README.md says how they are
written)."""

import re
import unicodedata
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs/spec"
SHELVES = {"spec": SPEC, "facts": SPEC / "facts"}
TREES = ("docs", "packages", "tests", "tools", "bench")
KINDS = {".py", ".md", ".toml", ".sh", ".c", ".sql", ".patch", ".txt"}

CITATION = re.compile(r"(?<![\w/.`-])(spec|facts)/([a-z]\w*)(?:#([\w-]+))?(?![\w/]|\.md)")
# Sections of documents that are not in the repository; a paper's sections are cited after its year.
FORMER = re.compile(
    r"\b(?:SPEC|DESIGN|CLIENTS|STACK|ENGINES|STYLE|[Ff]acts)(?:\.md)?,? (?:§|sections? \d|\d\.\d)"
    r"|(?<!\d{4}, )§"
)


@cache
def headings(page: Path) -> frozenset[str]:
    return frozenset(map(slug, re.findall(r"^#{2,} (.*)$", page.read_text(), re.MULTILINE)))


def slug(heading: str) -> str:
    kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def files() -> list[Path]:
    return [
        path
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*"))
        if path.suffix in KINDS and path != Path(__file__)
    ]


def test_every_citation_names_a_heading() -> None:
    wrong: list[str] = []
    for path in files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for shelf, name, heading in CITATION.findall(line):
                page = SHELVES[shelf] / f"{name}.md"
                if not page.is_file() or (heading and heading not in headings(page)):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {shelf}/{name}#{heading}")
    assert not wrong


def test_no_citation_is_of_a_document_that_is_not_here() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORMER.search(line)
    ]
    assert not wrong


def test_every_rule_has_a_test_that_names_it() -> None:
    """Import contracts hold the code to rules, too."""
    tests = [*(ROOT / "tests").rglob("*.py"), ROOT / ".importlinter"]
    named = {
        f"{name}#{heading}"
        for path in tests
        for shelf, name, heading in CITATION.findall(path.read_text())
        if shelf == "spec"
    }
    rules = {
        f"{page.stem}#{heading}"
        for page in SPEC.glob("*.md")
        if page.stem != "README"
        for heading in headings(page)
    }
    assert not rules - named
