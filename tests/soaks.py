"""Constants of `./dev test-all`, for tests that extend their range in it and cannot use a mark."""

import os

SOAKS = bool(os.environ.get("TRAINSHED_TEST_SOAKS"))

KILLS = 6 if SOAKS else 2
"""The number of steps of a call at which an engine is killed. It is small because durability belongs to the
local engine, which is killed at more steps (tests/engines/test_conformance.py).
"""

KILLS_OF_LOCAL = 6 if SOAKS else 4
