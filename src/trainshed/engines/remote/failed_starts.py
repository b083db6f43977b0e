"""Agents that ended before they were there: how soon another one is started in the same place, how often, and
whose fault it is. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Delay, DelayCause

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further start; after the last of them none follows."""


class FailedStarts(Struct, frozen=True):
    """Of one place, since an agent was there last."""

    count: int
    #: Why the last one ended: one sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Seconds until another one is started; None = there have been enough."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def with_another(before: FailedStarts | None, why: str) -> FailedStarts:
    """One more in that place."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of(node: str, failed: FailedStarts, pause: float) -> Delay:
    """What is told while another one is waited for."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        DelayCause.ENGINE,
        f"the agent on node {node} ended before it was there{times}: {failed.why}; another one is started "
        f"{soon}",
    )


def told(node: str, failed: FailedStarts) -> str:
    """What is told when none is started any more."""
    return f"no agent stays on node {node}: {failed.count} were started, and of the last one: {failed.why}"


def is_the_nodes(node: str, came: Mapping[str, float]) -> bool:
    """Whether it is the node's fault: the same came on another one, and later than on this one, if ever.
    `came`: when an agent was there last, by node."""
    here = came.get(node, float("-inf"))
    return any(at > here for name, at in came.items() if name != node)
