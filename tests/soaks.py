"""Whether a run is `./dev test-all`: for what it does more of, where a mark would not say it."""

import os

SOAKS = bool(os.environ.get("TRAINSHED_TEST_SOAKS"))

KILLS = 6 if SOAKS else 2
"""At how many steps of a call an engine is killed whose own part in it is small: what is durable is the local
engine's, which is killed at more (tests/engines/test_conformance.py)."""

KILLS_OF_LOCAL = 6 if SOAKS else 4
