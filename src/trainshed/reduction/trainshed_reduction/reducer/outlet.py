"""Where a process of a reducer tells what happens: to a person a line at a time, to the service by numbers."""

from __future__ import annotations

from typing import Protocol

from trainshed_reduction.reducer.counting import Numbers


class Outlet(Protocol):
    """None of these blocks for long or raises."""

    def log(self, text: str) -> None:
        """A line."""
        ...

    def serving(self, world: int) -> None:
        """A group of so many workers is complete."""
        ...

    def metrics(self, numbers: Numbers) -> None:
        """As of now; at most once a second, and only when something has changed."""
        ...
