"""What holds for all tests: event loops are those that the service runs on.

Virtual time brings a loop of its own (`tests.sim.virtual`). Programs that tests start choose for themselves.
"""

import asyncio

import uvloop

# The only way to reach the loops that pytest plug-ins and libraries make; until Python 3.16.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # pyright: ignore[reportDeprecated] - see above
