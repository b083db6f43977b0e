"""Measures the size of the project: `./dev size`. CI fails if a figure in `FIGURES` grows by more than
`MAX_GROWTH`. A commit may raise a figure if its message contains the reason."""

import ast
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import click
from msgspec import Struct
from tools.command_reference import commands

from trainshed.serve.settings import Settings
from trainshed_cluster.kubernetes.settings import KubernetesSettings
from trainshed_cluster.slurm.settings import SlurmSettings

ROOT: Final = Path(__file__).resolve().parent.parent
LOCAL_MARK, CLUSTER_MARK = "¹", "²"
"""Suffixes of the glossary terms that a user meets before the first job runs: `LOCAL_MARK` on one machine,
`CLUSTER_MARK` only on a cluster."""

VAGUE: Final = frozenset({"asked", "each", "found", "given", "named", "one", "said", "told"})
"""Names of variables that do not describe the contents."""
_MAY_BE_VAGUE: Final = re.compile(
    rf"(?<![\w.])(?:{'|'.join(sorted(VAGUE))})\s*(?:[-+*/%@&|^<>:]*=|[:,)\]#\\]|in\b)"
)
"""A vague name followed by a binding. A module is parsed for vague names only if this pattern matches."""


MAX_GROWTH: Final = 0.05
FIGURES: Final = {"lines": 116_000, "lines of tests": 99_000, "words of documents": 85_000}
"""Figures of release 0.3.0."""
GRANTS: Final = {"lines": 5_000, "lines of tests": 4_000}
"""Growth that the project has granted in addition: to pipelines and schedules."""


class Size(Struct, frozen=True):
    """A measured figure."""

    name: str
    value: int

    @property
    def limit(self) -> int | None:
        """The highest value that CI accepts; None = any value."""
        figure = FIGURES.get(self.name)
        if figure is None:
            return None
        return int(figure * (1 + MAX_GROWTH)) + GRANTS.get(self.name, 0)

    @property
    def is_exceeded(self) -> bool:
        return self.limit is not None and self.value > self.limit


def sizes() -> tuple[Size, ...]:
    """Return the figures of the tree that contains this file."""
    one_machine = _python("packages/trainshed/src")
    source = _python("packages/*/src")
    start = [
        path for path in source if re.search(r"trainshed/(replica|engines/(local|launch))/", path.as_posix())
    ]
    records = [path for path in (ROOT / "docs/adr").glob("*.md") if path.name != "README.md"]
    glossary = (ROOT / "docs/glossary.md").read_text()
    local = len(re.findall(rf"^\| [^|]*{LOCAL_MARK} \|", glossary, re.MULTILINE))
    values = {
        "modules": len(source),
        "modules that one machine needs": len(one_machine),
        "lines": sum(map(_lines, source)),
        "lines that one machine needs": sum(map(_lines, one_machine)),
        "lines of code": sum(map(_code, source)),
        "lines of code on the way of a start": sum(map(_code, start)),
        "lines of tests": sum(map(_lines, [*_python("tests"), *_python("packages/*/tests")])),
        "settings of the service": len(Settings.__struct_fields__),
        "settings of Slurm": len(SlurmSettings.__struct_fields__),
        "settings of Kubernetes": len(KubernetesSettings.__struct_fields__),
        "commands": sum(not isinstance(command, click.Group) for _, command in commands()),
        "ideas on the way of a start": local,
        "ideas with a cluster": local
        + len(re.findall(rf"^\| [^|]*{CLUSTER_MARK} \|", glossary, re.MULTILINE)),
        "decision records": len(records),
        "words of decision records": _words(records),
        "words of documents": _words([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]),
    }
    return tuple(Size(name, value) for name, value in values.items())


def _python(folder: str) -> list[Path]:
    return sorted(ROOT.glob(f"{folder}/**/*.py"))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _code(path: Path) -> int:
    """Count the lines of code, without comments, blank lines and docstrings."""
    return _read(path)[0]


def vague_names(path: Path) -> tuple[str, ...]:
    """Return the locations of variables and arguments with vague names in a module."""
    return _read(path)[1] if _MAY_BE_VAGUE.search(path.read_text()) else ()


@cache
def _read(path: Path) -> tuple[int, tuple[str, ...]]:
    """Return the lines of code and the vague names of a module. The module is parsed once for both."""
    text = path.read_text()
    without = set(range(1, text.count("\n") + 2))
    vague: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            without -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            vague.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.arg}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            vague.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}")
    lines = enumerate(text.splitlines(), 1)
    code = sum(1 for number, line in lines if number in without and line.strip() and line.strip()[0] != "#")
    return code, tuple(vague)


def _words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def main() -> None:
    """Print all figures. Exit with status 1 if a figure is above its limit."""
    measured = sizes()
    for size in measured:
        note = f"  above its limit of {size.limit:,}" if size.is_exceeded else ""
        sys.stdout.write(f"{size.name:38}{size.value:>9,}{note}\n")
    sys.exit(any(size.is_exceeded for size in measured))


if __name__ == "__main__":
    main()
