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
