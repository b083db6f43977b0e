"""The findings of `trainshed doctor`: each fault with its cause and its remedy. Pure."""

import enum

from msgspec import Struct


class Verdict(enum.StrEnum):
    """How good a finding is."""

    #: Nothing has to be done.
    GOOD = "good"
    #: It works, but not as well as it could.
    LESS = "less"
    #: No service can work like this.
    BAD = "bad"


class Finding(Struct, frozen=True):
    """The result of one check. Made by `good`, `less` and `bad`."""

    about: str
    verdict: Verdict
    #: What was found, as a text for people.
    text: str
    #: Why it is so; "" only in good findings.
    cause: str = ""
    #: What to do: a command, a setting, a file to change. In good findings: what could be gained beyond, or
    #: "".
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a fault without a cause or a remedy."""
        if self.verdict is not Verdict.GOOD and not (self.text and self.cause and self.remedy):
            raise ValueError(f"{self.about}: a fault without its cause and its remedy")


def good(about: str, text: str, *, cause: str = "", remedy: str = "") -> Finding:
    """Return a finding for which nothing has to be done."""
    return Finding(about, Verdict.GOOD, text, cause, remedy)


def less(about: str, text: str, *, cause: str, remedy: str) -> Finding:
    """Return a finding of what works, but not as well as it could."""
    return Finding(about, Verdict.LESS, text, cause, remedy)


def bad(about: str, text: str, *, cause: str, remedy: str) -> Finding:
    """Return a finding with which no service, or no job, can work."""
    return Finding(about, Verdict.BAD, text, cause, remedy)
