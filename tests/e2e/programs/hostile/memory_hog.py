"""Allocates memory as fast as possible, beyond its limit, and prints its size.

`touched`: its own memory. `unmapped`: memory of a file without a mapping. It starts after a delay, and stops
at MAX MiB.
"""

import mmap
import os
import sys
import time

how, most = sys.argv[1], int(sys.argv[2])
STEP = 8
POPULATED = 0x8000
held = []
file = os.memfd_create("unmapped") if how == "unmapped" else -1
block = bytes(STEP << 20) if how == "unmapped" else b""
time.sleep(2.5)
for size in range(STEP, most + STEP, STEP):
    if how == "unmapped":
        os.write(file, block)
    else:
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | POPULATED
        held.append(mmap.mmap(-1, STEP << 20, kind))
    os.write(1, f"HAS {size}\n".encode())
# A periodic check finds mapped memory at any time.
time.sleep(1.5 if how == "unmapped" else 50)
print("SURVIVED", flush=True)
