"""What a mutant is: one planted bug, as an exact textual patch, and the command that has to notice it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Catcher:
    """A command that passes on the tree as it is, and fails on one with the bug in it. `arguments`: of
    Python. `limit`: seconds after which it counts as passed, whatever it would have found."""

    name: str
    arguments: tuple[str, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """`file`: below the root. `old` occurs exactly once in it, and is replaced by `new`. `why`: what the bug
    would do."""

    name: str
    file: str
    old: str
    new: str
    why: str
    caught_by: Catcher


class DoesNotApply(Exception):
    """The file has changed: the mutant has to be written anew, or its place is gone and so must be the
    mutant."""


_WORLDS: Final = 40
SIMULATION: Final = Catcher(
    "simulation", ("-m", "tests.sim.run", "--seed", "1", "--worlds", f"{_WORLDS}", "--quick"), 150
)
"""The same worlds for all, so that none is caught by a seed that was looked for."""


def tests(*which: str, limit: int) -> Catcher:
    """Test files, or single tests of them. The first that fails ends it."""
    arguments = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *which)
    return Catcher(" ".join(name.removeprefix("tests/") for name in which), arguments, limit)


def mutated(mutant: Mutant, text: str) -> str:
    """The text of its file with the bug in it. Raises DoesNotApply."""
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
            raise DoesNotApply(
                f"{mutant.name}: with it {mutant.file} is no Python: {error}"
            ) from error
    return changed


def text_of(mutant: Mutant, root: Path) -> str:
    """What it is to be applied to. Raises DoesNotApply."""
    try:
        return (root / mutant.file).read_text("utf-8")
    except FileNotFoundError as error:
        raise DoesNotApply(f"{mutant.name}: there is no {mutant.file}") from error
