"""Links with a delay: a frame leaves the other end some milliseconds later, in order.

    python -m bench.reduction.relay SECONDS DEVICE:NAMESPACE ...

For each pair it creates the device on this side and `eth0` in the namespace, reports that it is ready, and
forwards frames until its input closes. Not every kernel supports netem. Frames of up to 64 KiB pass as a
whole (TSO), so a few thousand per second are enough.
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
_MAX_FRAME = (1 << 16) + 256
_MTU = "1500"
_URGENT = -15
"""Raise the priority: a link does not wait for a CPU."""


def cable_end(name: str) -> int:
    """Create a TAP device with this name in this namespace; return its descriptor. Raises OSError."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(handle, _TUNSETVNETHDRSZ, struct.pack("i", _VIRTIO_HEADER))
    fcntl.ioctl(handle, _TUNSETOFFLOAD, _CHECKSUM | _TSO4)
    subprocess.run(["ip", "link", "set", name, "mtu", _MTU], check=True)
    return handle


def carry(pairs: Sequence[tuple[int, int]], seconds: float) -> None:
    """Run until standard input closes."""
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
                # All frames have the same delay, so the first is due first.
                while True:
                    under_way.append((now + seconds, other[handle], os.read(handle, _MAX_FRAME)))
            except BlockingIOError:
                continue
        while under_way and under_way[0][0] <= now:
            _, handle, frame = under_way.popleft()
            try:
                os.write(handle, frame)
            except OSError:
                continue  # Like an unplugged cable, a closed device drops its frames.


def main(words: Sequence[str]) -> int:
    seconds, *cables = words
    os.nice(_URGENT)
    pairs: list[tuple[int, int]] = []
    for number, cable in enumerate(cables):
        device, namespace = cable.split(":")
        inside = f"inside{number}"
        pairs.append((cable_end(device), cable_end(inside)))
        subprocess.run(["ip", "link", "set", inside, "netns", namespace, "name", "eth0"], check=True)
    print("ready", flush=True)
    carry(pairs, float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
