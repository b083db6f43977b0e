"""The latency of status requests while the service is busy with a gang of 200, a build, a flood of lines, a
listing of 100,000 objects, or a hung zygote.

A separate process sends `GET /trainshed/v1/status` every few milliseconds, in turn with requests to its own
echo server.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.running import Service, running

from bench import loop_load
from bench.measures import Row, percentile, scaled_budget

LIMIT = 100.0
"""Maximum latency in milliseconds (issue 14, point 9)."""
IDLE = 5.0
"""Seconds of the row without load."""

SCENES: tuple[tuple[str, Callable[[Service], None]], ...] = (
    ("nothing", lambda _: time.sleep(IDLE)),
    (f"a gang of {loop_load.GANG} that starts and is cancelled", loop_load.start_gang),
    ("the build of a package", loop_load.build),
    ("two programs that flood their logs, one followed", loop_load.flood),
    (f"pages of a listing of {loop_load.OBJECTS:,} objects", loop_load.list_objects),
    ("a gang of 40 whose zygote hangs", loop_load.hang_zygote),
)


def measure() -> list[Row]:
    """Return one row for each kind of load."""
    with (
        tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory,
        running(Path(directory) / "data") as service,
    ):
        loop_load.start_gang(service, 2)
        loop_load.fill(service)
        return [_row(name, service, scene) for name, scene in SCENES]


def _row(name: str, service: Service, scene: Callable[[Service], None]) -> Row:
    with loop_load.calling(service) as series:
        scene(service)
    calls, echoes = ([seconds * 1e3 for seconds in spans] for spans in series)
    here, target = scaled_budget(LIMIT)
    return Row(
        f"status call during {name}, p50 / p99 / longest",
        _figures(calls),
        _figures(echoes),
        target=target,
        held=max(calls) <= here,
    )


def _figures(spans: list[float]) -> str:
    figures = percentile(spans, 0.5), percentile(spans, 0.99), max(spans)
    return " / ".join(f"{figure:.1f}" for figure in figures) + " ms"
