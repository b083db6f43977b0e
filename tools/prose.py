"""Measures how easy the project's texts are to read, and fails above `LIMITS`: `./dev check`.

A hit is a construction that docs/style.md advises against. The sentence of a hit may still be correct, so
each group of texts has a limit per 10,000 words. A commit may raise a limit if its message contains the
reason.

    python -m tools.prose              prints the figures of all groups
    python -m tools.prose GROUP FILE   prints the hits in a group, and in a file
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parent.parent

GROUPS: Final = {
    "pages": ("README.md", "CONTRIBUTING.md", "docs/*.md", "packages/*/README.md"),
    "records": ("docs/*/**/*.md",),
    "source": ("packages/*/src/**/*.py", "tools/**/*.py", "bench/**/*.py"),
    "tests": ("tests/**/*.py", "packages/*/tests/**/*.py"),
}
MAX_PRIVATE_NAMES: Final = 8
LIMITS: Final = {"pages": 4, "records": 6, "source": 5, "tests": 8}
"""Maximum hits per 10,000 words, by group."""

HITS: Final = {
    "name the role": r"(?:^|[.;:,] |\b(?:by|of|for|to|and|or|that|if|than) )(?:[Ww]ho|[Ww]hoever|whom)\b"
    r"|\b(?:nobody|everybody|somebody|whoever)\b",
    "use a noun": r"(?:^|[.;:] )What [a-z]+|\bof (?:what|which)\b|\b(?:one|those|that) (?:that|who|which)\b",
    "things do not talk": r"\b(?:said|told|says|tells?)\b",
    "use the common word": r"\b(?:anew|meanwhile|by itself|by themselves|for ever|alone)\b|\bgo(?:es)? on\b"
    r"|\b(?:stands?|lies?) (?:in|at|there|on|below|beside|here)\b",
    "unclear reference": r"\bas (?:it|they) (?:is|are|was|were)\b",
}
"""Patterns by the advice that is printed about them."""

PRIVATE_NAMES: Final = re.compile(
    r"^\s*_?(?:MOST|LEAST|LONGEST|SHORTEST|FEWEST|LARGEST|PATIENCE|PAUSE|SILENCE|SOON|AWAY|CROWD|LOOK|TRIES|AT_ONCE|"
    r"TAKEN|OURS|SHOWN|NAMED|PASSED_ON|LEFT_OUT|AGAIN|BY_ITSELF|LEAVE|LINGER|SHARE)(?:_[A-Z_]+)?\b *[:=]",
    re.MULTILINE,
)
"""Constants whose names are not terms of the field. Use MAX_X, MIN_X, X_TIMEOUT, X_INTERVAL or X_LIMIT
instead."""


class Hit(Struct, frozen=True):
    """A sentence that matches a pattern, and the advice about it."""

    path: str
    advice: str
    sentence: str


def texts(path: Path) -> Iterator[str]:
    """Yield the prose of a page or a module: paragraphs, docstrings and comments, without code samples."""
    source = path.read_text()
    if path.suffix == ".md":
        yield re.sub(r"```.*?```|`[^`\n]*`", "", source, flags=re.DOTALL)
        return
    comments = [
        token.string.lstrip("#: ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield "\n".join(comments)
    for node in ast.walk(ast.parse(source)):
        # Yield docstrings, and the strings that document constants and attributes.
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case _:
                pass


def hits(path: Path, text: str) -> Iterator[Hit]:
    """Yield the constructions in a text that docs/style.md advises against."""
    name = path.relative_to(ROOT).as_posix()
    for advice, pattern in HITS.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            start = max(text.rfind(end, 0, match.start()) for end in (". ", "\n\n")) + 1
            end = text.find(". ", match.end())
            yield Hit(name, advice, " ".join(text[start : end if end > 0 else None].split()))


def main(*arguments: str) -> int:
    """Print the figures of all groups, or the hits in files or groups. Return 1 if a limit is exceeded."""
    chosen = {argument for argument in arguments if argument in GROUPS}
    files = [Path(argument).resolve() for argument in arguments if argument not in GROUPS]
    for path in [*files, *(path for group in chosen for path in paths(group))]:
        for hit in (hit for text in texts(path) for hit in hits(path, text)):
            click.echo(f"{hit.path}: {hit.advice}: {hit.sentence[:200]}")
    if arguments:
        return 0
    is_exceeded = False
    for group, limit in LIMITS.items():
        words, count = 0, 0
        for path in paths(group):
            for text in texts(path):
                words += len(text.split())
                count += sum(1 for _ in hits(path, text))
        value = count * 10_000 / max(words, 1)
        is_exceeded |= value > limit
        click.echo(f"{group:8} {words:8,} words, {value:6.1f} hits per 10,000 words; limit {limit}")
    names = sum(len(PRIVATE_NAMES.findall(path.read_text())) for path in paths("source"))
    click.echo(f"{names} constants with private names; limit {MAX_PRIVATE_NAMES}")
    return int(is_exceeded or names > MAX_PRIVATE_NAMES)


def paths(group: str) -> list[Path]:
    """Return the files of a group."""
    return sorted({path for pattern in GROUPS[group] for path in ROOT.glob(pattern)})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
