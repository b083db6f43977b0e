"""A program that takes memory, as fast as it can, beyond its limit. Says how much it has as it goes.

`touched`: memory of its own. `unmapped`: of a file in memory that it has not mapped. It stops by itself at MOST MiB.
"""

import os
import sys
import time

how, most = sys.argv[1], int(sys.argv[2])
block = b"\1" * (1 << 20)
held = []
file = os.memfd_create("unmapped") if how == "unmapped" else -1
for size in range(1, most + 1):
    if how == "unmapped":
        os.write(file, block)
    else:
        held.append(bytearray(block))
    if size % 8 == 0:
        os.write(1, b"HAS %d %d\n" % (size, time.time_ns()))
# Long enough for whoever looks now and then.
time.sleep(3)
print("SURVIVED", flush=True)
