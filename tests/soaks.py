"""Whether a run is `./dev test-all`: for tests that do more of something then, where no mark can say so."""

import os

SOAKS = bool(os.environ.get("TRAINSHED_TEST_SOAKS"))

KILLS = 6 if SOAKS else 2
"""At how many steps of a call an engine is killed. Few, since what is durable is the local engine's part, and
that one is killed at more steps (tests/engines/test_conformance.py)."""

KILLS_OF_LOCAL = 6 if SOAKS else 4
