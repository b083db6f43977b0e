"""What texts name is there: modules of comments, docstrings and pages, and the classes of the glossary."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "packages/trainshed/src/trainshed"
TREES = ("docs", "packages", "tests", "tools", "bench")
PACKAGES = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
#: Those of the other distributions, of which texts name the whole alone.
OTHERS = {path.name: path for path in (ROOT / "packages").glob("*/src/*")}

#: `core.study.records.Trial`, in backticks, with `trainshed.` before it or without.
NAMED = re.compile(r"`(?:trainshed\.)?([a-z]\w*(?:\.\w+)+)(?:\(\))?`")
#: What ends so is a file, such as `buckets.sock`.
FILES = {"sock", "toml", "md", "py", "json", "jsonl", "log", "db"}
#: Decision records tell of the code as it was; distributions of their own name modules of their own.
PASSED_OVER = {"adr", "trainshed_reduction"}


def is_there(name: str) -> bool:
    place, parts = SOURCE, name.split(".")
    while parts and (place / parts[0] / "__init__.py").is_file():
        place /= parts.pop(0)
    if parts and (module := place / f"{parts[0]}.py").is_file():
        parts.pop(0)
    else:
        module = place / "__init__.py"
    text = module.read_text()
    return all(re.search(rf"\b{part}\b", text) for part in parts)


def test_modules_that_texts_name_are_there() -> None:
    wrong: list[str] = []
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            if path.suffix not in (".py", ".md") or PASSED_OVER & {*path.parts}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for name in NAMED.findall(line):
                    package, last = name.split(".")[0], name.split(".")[-1]
                    if package in PACKAGES and last not in FILES and not is_there(name):
                        wrong.append(f"{path.relative_to(ROOT)}:{number}: {name}")
    assert not wrong, "\n".join(wrong)


#: A row of the glossary: the term, its meaning, the packages that it is a word of.
ROW = re.compile(
    r"^\| (?P<term>\w[^|(]*?)(?: \([^|]*\))? \| .+ \| (?P<packages>`.+`) \|$", re.MULTILINE
)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def test_classes_of_the_glossary_are_in_the_packages_that_it_names() -> None:
    """Terms with a capital letter are classes."""
    homes: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in CLASS.findall(path.read_text()):
            homes.setdefault(name, set()).add(path.relative_to(SOURCE).parts[0])
    for package, place in OTHERS.items():
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
