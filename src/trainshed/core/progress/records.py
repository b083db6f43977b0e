"""What is told of how far a program is. Apart from how that is found: that takes thirty expressions, and most
services are never asked."""

from msgspec import Struct


class Estimate(Struct, frozen=True):
    """How far a program is."""

    #: From 0 to 1; None = not known.
    done: float | None
    #: In words, such as "epoch 3 of 10".
    text: str
    #: Seconds that it will still take; None = too little is known.
    remaining: float | None = None
    #: Seconds by which that may be wrong, either way, in four of five cases.
    margin: float | None = None
