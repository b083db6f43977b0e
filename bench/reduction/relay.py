"""Cables that take their time: what goes in at one end comes out at the other some milliseconds later, in
order.

    python -m bench.reduction.relay SECONDS DEVICE:NAMESPACE ...

Makes for each a device of that name here and `eth0` in the namespace, says that it is ready, and carries
frames until its input ends. A kernel's own way to delay (netem) is not in every kernel. Frames of up to 64
KiB travel whole (TSO), so that a few thousand a second are enough.
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TSO4 = 0x01, 0x02
_VIRTIO_HEADER = 10
_LARGEST = (1 << 16) + 256
_MTU = "1500"
_URGENT = -15
"""A cable does not wait for a processor."""


def cable_end(name: str) -> int:
    """A new TAP device of this name in this namespace: its descriptor. Raises OSError."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(handle, _TUNSETVNETHDRSZ, struct.pack("i", _VIRTIO_HEADER))
    fcntl.ioctl(handle, _TUNSETOFFLOAD, _CHECKSUM | _TSO4)
    subprocess.run(["ip", "link", "set", name, "mtu", _MTU], check=True)
    return handle


def carry(pairs: Sequence[tuple[int, int]], seconds: float) -> None:
    """Until standard input ends."""
    other = dict(pairs) | {right: left for left, right in pairs}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        until = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([0, *other], [], [], until)
        if 0 in ready:
            return
        now = time.monotonic()
        for handle in ready:
            try:
                # All have the same delay: what comes first is due first.
                while True:
                    under_way.append((now + seconds, other[handle], os.read(handle, _LARGEST)))
            except BlockingIOError:
                continue
        while under_way and under_way[0][0] <= now:
            _, handle, frame = under_way.popleft()
            try:
                os.write(handle, frame)
            except OSError:
                continue  # As a cable that is pulled out loses what it carries.


def main(words: Sequence[str]) -> int:
    seconds, *cables = words
    os.nice(_URGENT)
    pairs: list[tuple[int, int]] = []
    for number, cable in enumerate(cables):
        device, namespace = cable.split(":")
        inside = f"inside{number}"
        pairs.append((cable_end(device), cable_end(inside)))
        subprocess.run(
            ["ip", "link", "set", inside, "netns", namespace, "name", "eth0"], check=True
        )
    print("ready", flush=True)
    carry(pairs, float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
