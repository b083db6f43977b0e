"""Decides about agents that ended before they connected: how soon and how often another one is started in the
same place, and whether the node is at fault. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Delay, WaitReason

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further start; after the last of them none follows."""


class FailedStarts(Struct, frozen=True):
    """The failed starts in one place since an agent last connected there."""

    count: int
    #: Why the last one ended: a sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Return the seconds until another start; None = there were enough."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def with_another(before: FailedStarts | None, why: str) -> FailedStarts:
    """Add a failed start to those before it."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of(node: str, failed: FailedStarts, pause: float) -> Delay:
    """Return the delay to report until the next start."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        WaitReason.ENGINE,
        f"the agent on node {node} ended before it was there{times}: {failed.why}; another one is started "
        f"{soon}",
    )


def told(node: str, failed: FailedStarts) -> str:
    """Return the message when no further start is tried."""
    return f"no agent stays on node {node}: {failed.count} were started, and of the last one: {failed.why}"


def is_the_nodes(node: str, came: Mapping[str, float]) -> bool:
    """Whether the node is at fault, because an agent connected from another node, and later than from this
    one, if ever. `came`: when an agent last connected, by node."""
    here = came.get(node, float("-inf"))
    return any(at > here for name, at in came.items() if name != node)
