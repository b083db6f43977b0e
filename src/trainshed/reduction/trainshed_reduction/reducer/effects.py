"""What a group asks of whoever holds the connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Union

from trainshed_reduction.reducer.buffers import Block

if TYPE_CHECKING:
    from trainshed_reduction.reducer.members import Member


class Deliver(NamedTuple):
    """Send a result to these."""

    members: "List[Member]"
    header: bytes
    payload: Block


class Tell(NamedTuple):
    """Send one frame."""

    member: "Member"
    frame: bytes


class Remind(NamedTuple):
    """Send one frame, unless something else is still unsent: then the worker does not wait for us."""

    member: "Member"
    frame: bytes


class Resume(NamedTuple):
    """There is room again for what these send."""

    members: "List[Member]"


class Dismiss(NamedTuple):
    """Close the connection after this frame; b"" = at once. The group has forgotten the member already."""

    member: "Member"
    farewell: bytes


class Log(NamedTuple):
    """Something that a person wants to know of."""

    text: str


class Completed(NamedTuple):
    """All ranks of a group are here for the first time."""

    world: int


Effect = Union[Deliver, Tell, Remind, Resume, Dismiss, Log, Completed]
