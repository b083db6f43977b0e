"""A mutant: one planted bug, as an exact textual patch, and the command that must detect it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Catcher:
    """A command that passes on the unchanged tree, and fails with the bug. `arguments`: of Python. `limit`:
    seconds after which it counts as passed.
    """

    name: str
    arguments: tuple[str, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug.

    `file`: path below the root. `old`: text that occurs exactly once in the file. `new`: its replacement.
    `why`: the effect of the bug.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    caught_by: Catcher


class DoesNotApply(Exception):
    """The file has changed: rewrite the mutant, or delete it if its code no longer exists."""


_WORLDS: Final = 40
SIMULATION: Final = Catcher(
    "simulation", ("-m", "tests.sim.run", "--seed", "1", "--worlds", f"{_WORLDS}", "--quick"), 150
)
"""The same worlds for all, so that no mutant has a hand-picked seed."""


def tests(*which: str, limit: int) -> Catcher:
    """Return a command that runs test files or single tests, and stops at the first failure."""
    arguments = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *which)
    return Catcher(" ".join(name.removeprefix("tests/") for name in which), arguments, limit)


def apply_mutant(mutant: Mutant, text: str) -> str:
    """Return the file's text with the bug. Raises DoesNotApply."""
    count = text.count(mutant.old)
    if count != 1:
        raise DoesNotApply(
            f"{mutant.name}: the text that it replaces occurs {count} times in {mutant.file}, not once"
        )
    changed = text.replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError as error:
            raise DoesNotApply(f"{mutant.name}: with it {mutant.file} is no Python: {error}") from error
    return changed


def text_of(mutant: Mutant, root: Path) -> str:
    """Return the text to patch. Raises DoesNotApply."""
    try:
        return (root / mutant.file).read_text("utf-8")
    except FileNotFoundError as error:
        raise DoesNotApply(f"{mutant.name}: there is no {mutant.file}") from error
