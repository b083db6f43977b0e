"""One scheduling decision with 10,000 nodes and 100,000 queued jobs, as rows. `bench.scheduler_scale`
measures it."""

from bench import scheduler_scale
from bench.measures import Row, within

MAX_SECONDS = 0.3
"""Maximum seconds of a decision on an existing snapshot."""
MAX_BUILD_SECONDS = 1.0
"""Maximum seconds to build the snapshot."""
MAX_BLOCKED_SECONDS = 0.1
"""Maximum seconds for which a decision blocks the event loop."""
MANY_SHAPES = 20_000

_DECISIONS = {
    "first": "first decision ({admitted:.0f} jobs start)",
    "settling": "decision that fills the last nodes",
    "full": "decision when nothing fits",
    "impatient": "decision after all jobs have waited too long",
    "freed": "decision after one running job in a hundred has ended ({freed_admitted:.0f} jobs start)",
}


def measure(nodes: int = scheduler_scale.NODES, jobs: int = scheduler_scale.JOBS) -> list[Row]:
    """Return the rows of the decisions. Building and changing the snapshot are separate rows. Further rows
    have a queue in which nearly every gang has another shape: without quotas, and with quotas that block most
    gangs."""
    figures = scheduler_scale.measure(nodes, jobs)
    build = f"building the snapshot, {nodes:,} nodes and {jobs:,} jobs, measured separately"
    return [
        within(build, figures["build"] * 1e3, None, MAX_BUILD_SECONDS * 1e3),
        Row("one change in it, measured separately", f"{figures['change']:.0f} µs", "–"),
        *_decisions(figures),
        *_decisions(scheduler_scale.measure(nodes, jobs, MANY_SHAPES), f"{MANY_SHAPES:,} shapes: "),
        *_decisions(
            scheduler_scale.measure(nodes, jobs, MANY_SHAPES, cpus_of_each=2000),
            f"{MANY_SHAPES:,} shapes, quotas used up: ",
        ),
    ]


def _decisions(figures: dict[str, float], prefix: str = "") -> list[Row]:
    return [
        within(prefix + name.format_map(figures), figures[key] * 1e3, None, MAX_SECONDS * 1e3)
        for key, name in _DECISIONS.items()
    ] + [
        within(
            f"{prefix}longest hold of the event loop by these",
            figures["held"] * 1e3,
            None,
            MAX_BLOCKED_SECONDS * 1e3,
        )
    ]
