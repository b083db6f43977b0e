"""What `trainshed doctor` finds: each fault with its cause and what mends it. Pure."""

import enum

from msgspec import Struct


class Verdict(enum.StrEnum):
    """How good what was found is."""

    #: Nothing is to be done.
    GOOD = "good"
    #: It works, not as well as it could.
    LESS = "less"
    #: No service can work like this.
    BAD = "bad"


class Finding(Struct, frozen=True):
    """One thing that was looked at. Made by `good`, `less` and `bad`."""

    about: str
    verdict: Verdict
    told: str
    #: Why it is so; "" only of what is good.
    cause: str = ""
    #: What to do: a command, a setting, a file to change. Of what is good: what could be had beyond it, or
    #: "".
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a fault that does not say how it is mended."""
        if self.verdict is not Verdict.GOOD and not (self.told and self.cause and self.remedy):
            raise ValueError(f"{self.about}: a fault without its cause and its remedy")


def good(about: str, told: str, *, cause: str = "", remedy: str = "") -> Finding:
    """Nothing has to be done."""
    return Finding(about, Verdict.GOOD, told, cause, remedy)


def less(about: str, told: str, *, cause: str, remedy: str) -> Finding:
    """It works, not as well as it could."""
    return Finding(about, Verdict.LESS, told, cause, remedy)


def bad(about: str, told: str, *, cause: str, remedy: str) -> Finding:
    """No service can work so, or no job."""
    return Finding(about, Verdict.BAD, told, cause, remedy)
