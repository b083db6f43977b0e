"""The estimate of a program's progress. It is apart from the code that makes it, which compiles thirty
regular expressions: most services are never asked."""

from msgspec import Struct


class Estimate(Struct, frozen=True):
    """How far a program is."""

    #: From 0 to 1; None = not known.
    done: float | None
    #: In words, such as "epoch 3 of 10".
    text: str
    #: Seconds that it will still run; None = too little is known.
    remaining: float | None = None
    #: Seconds by which `remaining` may be wrong, either way, in four of five cases; None = not known.
    margin: float | None = None
