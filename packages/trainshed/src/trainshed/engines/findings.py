"""Defines the findings of `trainshed doctor`. A finding that reports a fault also has its cause and its
remedy."""

import enum
import tomllib
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, convert


class Verdict(enum.StrEnum):
    """The grade of a finding, from good to bad."""

    #: No action is necessary.
    GOOD = "good"
    #: The service works, but some features are slower or missing.
    LESS = "less"
    #: No service can work in this state.
    BAD = "bad"


class Finding(Struct, frozen=True):
    """The result of one check."""

    about: str
    verdict: Verdict
    #: The observation, in a human-readable form.
    text: str
    #: The cause. Only good findings may have "".
    cause: str = ""
    #: The fix: a command, a setting, or a file to change. Good findings have a possible improvement or "".
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a fault without a cause or a remedy."""
        if self.verdict is not Verdict.GOOD and not (self.text and self.cause and self.remedy):
            raise ValueError(f"{self.about}: a finding of a fault needs a text, a cause and a remedy")


def finding_builder(module: str) -> Callable[..., Finding]:
    """Return a function that builds a doctor's findings from the TOML table next to `module` (its
    `__file__`). The function's arguments are the name of an entry of the table, and the values of the
    placeholders `{name}` in the entry's texts."""
    table = Path(module).with_suffix(".toml").read_text("utf-8")
    rows = convert(tomllib.loads(table), dict[str, Finding])

    def finding(row: str, /, **values: object) -> Finding:
        texts = rows[row]
        return Finding(
            about=texts.about.format_map(values),
            verdict=texts.verdict,
            text=texts.text.format_map(values),
            cause=texts.cause.format_map(values),
            remedy=texts.remedy.format_map(values),
        )

    return finding
