"""Decides about agents that ended before they connected: when to start the next one, and whether the node is
at fault. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Delay, WaitReason

START_INTERVALS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each further start of an agent. After the last of these starts, no further start
follows."""


class FailedStarts(Struct, frozen=True):
    """The failed starts of agents with the same key since such an agent last connected."""

    count: int
    #: The reason why the last agent ended: a sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Return the seconds until the next start; None = the maximum number of starts is reached."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def add_failed_start(before: FailedStarts | None, why: str) -> FailedStarts:
    """Return the failed starts of an agent, including one more."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of_start(node: str, failed: FailedStarts, pause: float) -> Delay:
    """Return the delay to report until the next start."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        WaitReason.ENGINE,
        f"the agent on node {node} ended before it connected{times}: {failed.why}; another one starts "
        f"{soon}",
    )


def start_failure_message(node: str, failed: FailedStarts) -> str:
    """Return the error message for a node on which no further agent is started."""
    return f"agents do not start on node {node}: {failed.count} failed, the last one because: {failed.why}"


def is_node_at_fault(node: str, came: Mapping[str, float]) -> bool:
    """Return whether the node is at fault: an agent connected from another node, and did so later than any
    agent from this node. `came`: time of the last connection, by node."""
    here = came.get(node, float("-inf"))
    return any(at > here for name, at in came.items() if name != node)
