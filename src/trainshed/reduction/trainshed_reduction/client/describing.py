"""What a group's reducers can gain, in one line. Pure."""

from __future__ import annotations

from trainshed_reduction import layout
from trainshed_reduction.settings import Settings


def describe(
    settings: Settings,
    world: int,
    reducers: int,
    processes: int,
    shares: layout.Shares,
    *,
    lack: str = "",
) -> str:
    """`reducers`: replicas of the pool, of `processes` in all. `lack`: why workers do not reduce though it would pay."""
    known = settings.worker_gbps > 0 and settings.reducer_gbps > 0
    # Where nothing is known of the links, reducers are taken to have what they need.
    speed = settings.reducer_gbps / settings.worker_gbps if known else world / reducers
    if shares.is_hybrid and not known:
        speed = 1.0
    bounds = layout.bounds(world, reducers, speed)
    mode = "pure"
    limit = bounds.ring / bounds.pure
    if shares.is_hybrid:
        mode = "hybrid: {:.0%} of every tensor to each reducer, {:.0%} to each worker".format(
            *shares
        )
        limit = bounds.limit
    text = "{} ({}), {}{}; at most {:.2f} times the ring's speed".format(
        _count(reducers, "reducer"),
        _count(processes, "process", "processes"),
        mode,
        " over TLS" if settings.is_secured else "",
        limit,
    )
    if lack:
        text += "; workers would reduce as well, but {}".format(lack)
    if world > 2:
        text += "; reducers alone are faster than the ring from {:.2f} times a worker's bandwidth on".format(
            layout.break_even(world)
        )
        if known:
            text += ", these have {:.2f}".format(reducers * speed)
    return text


def _count(number: int, one: str, many: str = "") -> str:
    return "{} {}".format(number, one if number == 1 else many or one + "s")
