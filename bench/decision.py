"""One decision at 10,000 nodes and 100,000 queued jobs, as rows (`bench.scheduler_scale` measures)."""

from bench import scheduler_scale
from bench.measures import Row

LIMIT = 1.0
"""Seconds of one decision on a kept snapshot (issue 3, point 11)."""

_DECISIONS = {
    "first": "first decision, which fills the nodes ({admitted:.0f} jobs start)",
    "settling": "decision just after it",
    "full": "decision when nothing fits",
    "impatient": "decision when everyone has waited too long",
    "freed": "decision after one running job in a hundred has ended ({freed_admitted:.0f} jobs start)",
}


def measure(nodes: int = scheduler_scale.NODES, jobs: int = scheduler_scale.JOBS) -> list[Row]:
    """The decisions; the building of the snapshot and one change in it apart."""
    found = scheduler_scale.measure(nodes, jobs)
    build = f"building the snapshot, {nodes:,} nodes and {jobs:,} jobs, counted apart"
    rows = [
        Row(build, f"{found['build']:.2f} s", "–"),
        Row("one change in it, counted apart", f"{found['change']:.0f} µs", "–"),
    ]
    for key, name in _DECISIONS.items():
        took = found[key]
        rows.append(
            Row(
                name.format_map(found),
                f"{took * 1e3:.0f} ms",
                "–",
                None,
                f"≤ {LIMIT:g} s",
                took <= LIMIT,
            )
        )
    return rows
