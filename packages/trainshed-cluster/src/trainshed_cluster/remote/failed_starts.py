"""Decides what happens after an agent has ended before it connected to the service: when the next agent
starts, and whether the node caused the failure. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Delay, WaitReason

START_INTERVALS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait after each failed start of an agent before the next start. After a further failure, the
service starts no more agents."""


class FailedStarts(Struct, frozen=True):
    """The failed starts of agents for the same node of an allocation. The count starts again when such an
    agent has connected."""

    count: int
    #: Why the last agent ended: a sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Return the seconds until the next start, or None if the maximum number of starts is reached.
        `pauses`: see `START_INTERVALS`."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def add_failed_start(before: FailedStarts | None, why: str) -> FailedStarts:
    """Return the failed starts of an agent after a further failure. `before`: the failed starts before that;
    None = there were none."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of_start(node: str, failed: FailedStarts, pause: float) -> Delay:
    """Return the delay to report while the next start of an agent waits."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        WaitReason.ENGINE,
        f"the agent on node {node} ended before it connected{times}: {failed.why}; another one starts {soon}",
    )


def start_failure_message(node: str, failed: FailedStarts) -> str:
    """Return the error message for a node on which the service starts no more agents."""
    return f"agents do not start on node {node}: {failed.count} failed, the last one because: {failed.why}"


def is_node_at_fault(node: str, last_connected: Mapping[str, float]) -> bool:
    """Return whether the node caused the failed starts of its agents. It did if an agent has connected from
    another node more recently than any agent from this node. `last_connected`: time of the last connection of
    an agent, by node."""
    here = last_connected.get(node, float("-inf"))
    return any(at > here for name, at in last_connected.items() if name != node)
