"""A rank's part in a group: while it is connected, and after it has left. Data, moved on by the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainshed_reduction.wire import Hello

if TYPE_CHECKING:
    from trainshed_reduction.reducer.groups import Group

WINDOW = 16 << 20
"""Bytes that a worker may have here without a result, and a chunk more."""


class Member:
    """A worker's connection, from its HELLO on. Every HELLO makes another one."""

    __slots__ = ("acknowledged", "group", "hello", "ordinal", "position", "rank", "unanswered")

    def __init__(self, hello: Hello, group: "Group") -> None:
        self.hello = hello
        self.rank = hello.rank
        self.group = group
        self.position = hello.received
        """Of the next chunk that it sends."""
        self.acknowledged = hello.received
        self.ordinal = 0
        """Of the latest operation that it has begun, as far as was seen here."""
        self.unanswered = 0
        """Bytes that it has sent and that no result was made of yet."""

    @property
    def is_full(self) -> bool:
        return self.unanswered >= WINDOW


class Parted(NamedTuple):
    """A rank that left in good order: it has sent what stands before `position`. `ordinal`: of its last operation."""

    position: int
    ordinal: int

    def text(self, rank: int) -> str:
        after = " after operation {}".format(self.ordinal) if self.ordinal else ""
        return "rank {} has left the group{}".format(rank, after)
