"""What summaries come to as measurements."""

import math

from trainshed.controller.measurements import of_summaries
from trainshed.core.study.records import Measurement
from trainshed.summaries.following import Point

SECOND = 10**9
STARTED = 100 * SECOND


def test_points_become_measurements_ascending_by_step() -> None:
    points = {20: Point(130.0, 0.5), 10: Point(120.5, 0.25), 0: Point(90.0, 0.0)}
    assert of_summaries("acc", points, STARTED) == (
        Measurement((("acc", 0.0),), 0, 0),
        Measurement((("acc", 0.25),), 10, 20 * SECOND + SECOND // 2),
        Measurement((("acc", 0.5),), 20, 30 * SECOND),
    )


def test_only_finite_values_count() -> None:
    points = {1: Point(110.0, math.nan), 2: Point(110.0, math.inf), 3: Point(110.0, 0.5)}
    assert [one.step for one in of_summaries("acc", points, STARTED)] == [3]
