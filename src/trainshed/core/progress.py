"""How far a program is, as far as the lines say that it prints: bars of tqdm, Keras, Lightning and Hugging
Face, and lines that count epochs or steps. Pure.

Guesses nothing: a line counts only if it tells both how much is done and how much there is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Progress:
    """How much is done of how much."""

    done: float
    #: 0 = not known.
    total: float
    #: In words, such as "epoch 3 of 10".
    text: str


_NUMBER: Final = r"(\d{1,12})"
_COUNTED: Final = re.compile(
    r"\b(epoch|step|iteration|iter|batch|round|generation)s?\b\s{0,3}[:=#]?\s{0,3}\[?"
    rf"{_NUMBER}\s{{0,3}}(?:/|of)\s{{0,3}}{_NUMBER}",
    re.IGNORECASE,
)
_BAR: Final = re.compile(rf"(\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,3}}{_NUMBER}/{_NUMBER}")
_WIDER: Final = ("epoch", "round", "generation")
"""What is counted in these holds many of the others, so that it tells more of the whole."""


def progress_of(lines: Sequence[str]) -> Progress | None:
    """The newest progress that the lines tell, oldest line first; None if they tell none. Epochs count before
    steps, which begin anew with each of them; a bar within an epoch tells how much of that is done."""
    epoch = step = None
    for line in reversed(lines):
        text = line[-2000:].rpartition("\r")[2] or line[-2000:]
        for found in reversed(list(_COUNTED.finditer(text))):
            word, done, total = found[1].lower(), int(found[2]), int(found[3])
            if total == 0 or done > total:
                continue
            progress = Progress(done, total, f"{word} {done} of {total}")
            if word in _WIDER:
                epoch = epoch or progress
            else:
                step = step or progress
        bar = _BAR.search(text)
        if bar and step is None and int(bar[3]) >= max(int(bar[2]), 1):
            step = Progress(int(bar[2]), int(bar[3]), f"{bar[2]} of {bar[3]}")
        if epoch is not None:
            break
    return epoch or step
