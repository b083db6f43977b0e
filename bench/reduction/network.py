"""Hosts as network namespaces. A bridge in a separate namespace joins them, over links with a chosen rate in
both directions.

The benchmark creates and removes the namespaces. The machine's own network does not change. Names contain the
process ID, so that the next run can remove the namespaces of a killed run.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

from tests.e2e.running import ROOT

MTU = 1500
CONGESTION_CONTROL = "cubic"
"""Congestion control of both sides, independent of the machine's default."""
LATENCY = "50ms"
"""Length of a link's queue, as a time."""
SMALLEST_BURST = 128 << 10
BURST_SECONDS = 0.002
_HEADERS = 52
"""Bytes of the IPv4 and TCP headers with time stamps, in each segment."""
_ETHERNET = 14
PAYLOAD_SHARE = (MTU - _HEADERS) / (MTU + _ETHERNET)
"""Fraction of the bytes on a link that are payload."""
_SUBNET = "10.77.0"
"""Address range of all benchmark networks. The networks are isolated from each other."""
PREFIX = "tsbench"
_OWN = re.compile(rf"{PREFIX}(\d+)-\w+")


class CannotRun(Exception):
    """This machine does not meet a requirement of the benchmark. The message contains the requirement."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a host has sent and received.

    `sent`: frames from the network stack, with up to 64 KiB of payload behind one header. `received`: frames
    to the network stack, in the same form. `sent_on_wire`: sent bytes with the headers of every segment; 0 if
    the link has no rate.
    """

    sent: int
    sent_on_wire: int
    received: int

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(
            self.sent - before.sent, self.sent_on_wire - before.sent_on_wire, self.received - before.received
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with one address. `device`: name of the network interface in it."""

    namespace: str
    address: str
    device: str = "eth0"

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that executes `words` on this host."""
        return _inside(self.namespace, words)

    def traffic(self) -> Traffic:
        (link,) = _query("ip", "-n", self.namespace, "-s", "-j", "link", "show", self.device)
        (queue,) = _query("tc", "-n", self.namespace, "-s", "-j", "qdisc", "show", "dev", self.device)
        stats = link["stats64"]
        on_wire = queue["bytes"] if queue["kind"] == "tbf" else 0
        return Traffic(stats["tx"]["bytes"], on_wire, stats["rx"]["bytes"])


class Network:
    """The hosts of workers and of reducers, as a context manager.

    `rate`, `reducer_rate`: Mbit/s of one link in each direction; 0 = unlimited. `slowest`: Mbit/s of the
    first worker's link; 0 = the same as other links. `delay`: ms in each direction on each link. `loss`:
    fraction of segments that each link loses in each direction.
    """

    def __init__(
        self,
        workers: int,
        reducers: int,
        rate: float,
        reducer_rate: float,
        *,
        slowest: float = 0.0,
        delay: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        self.workers: list[Host] = []
        self.reducers: list[Host] = []
        self._counts = (workers, reducers)
        self._rates = (rate, reducer_rate)
        self._slowest = slowest
        self._delay = delay
        self._loss = loss
        self._name = f"{PREFIX}{os.getpid()}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Create the network. If that fails, remove all parts of it, and raise CannotRun."""
        check()
        clear_leftovers()
        try:
            self._make()
        except subprocess.CalledProcessError as failure:
            self.__exit__()
            message = (failure.stderr or "").strip()
            raise CannotRun(f"`{' '.join(failure.cmd)}` failed: {message}") from failure
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make(self) -> None:
        self._switch = self._namespace("switch")
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up", "mtu", str(MTU))
        workers, reducers = self._counts
        rate, reducer_rate = self._rates
        names = [f"w{i}" for i in range(workers)] + [f"r{i}" for i in range(reducers)]
        for name in names:
            self._namespace(name)
        if self._delay:
            self._relay(names)
        self.workers = [self._host(f"w{i}", 1 + i, (not i and self._slowest) or rate) for i in range(workers)]
        self.reducers = [self._host(f"r{i}", 128 + i, reducer_rate) for i in range(reducers)]

    def _relay(self, names: Sequence[str]) -> None:
        """Create links with a delay. They replace the links that `_host` creates."""
        cables = [f"to-{name}:{self._name}-{name}" for name in names]
        program = [sys.executable, "-m", "bench.reduction.relay"]
        relay = subprocess.Popen(
            _inside(self._switch, [*program, f"{self._delay / 1000:g}", *cables]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self._stack.callback(relay.wait)
        assert relay.stdin is not None and relay.stdout is not None
        self._stack.callback(relay.stdin.close)
        if not relay.stdout.readline():
            raise CannotRun("the relay, which delays the links, exited when it started")

    def _namespace(self, name: str) -> str:
        whole = f"{self._name}-{name}"
        _run("ip", "netns", "add", whole)
        self._stack.callback(_remove, whole)
        _run("ip", "-n", whole, "link", "set", "lo", "up")
        return whole

    def _host(self, name: str, number: int, rate: float) -> Host:
        host = Host(f"{self._name}-{name}", f"{_SUBNET}.{number}")
        inside, outside, device = host.namespace, f"to-{name}", host.device
        if not self._delay:
            _run(
                *("ip", "-n", self._switch, "link", "add", outside, "mtu", str(MTU)),
                *("type", "veth", "peer", "name", device, "mtu", str(MTU), "netns", inside),
            )
        _run("ip", "-n", self._switch, "link", "set", outside, "master", "bridge", "up")
        _run("ip", "-n", inside, "link", "set", device, "up")
        _run(*("ip", "-n", inside, "address", "add", f"{host.address}/24", "dev", device), "noprefixroute")
        # Set the congestion control on the route, because the namespace's own setting accepts only values
        # that the machine allows for unprivileged users.
        _run(
            *("ip", "-n", inside, "route", "add", f"{_SUBNET}.0/24", "dev", device),
            *("src", host.address, "congctl", CONGESTION_CONTROL),
        )
        if rate:
            burst = max(SMALLEST_BURST, int(rate * 1e6 / 8 * BURST_SECONDS))
            for namespace, link in ((inside, device), (self._switch, outside)):
                _run(
                    *("tc", "-n", namespace, "qdisc", "replace", "dev", link, "root", "tbf"),
                    *("rate", f"{rate:g}mbit", "burst", str(burst), "latency", LATENCY),
                )
        if self._loss:
            # Send one segment per header. Otherwise one lost header would lose dozens of segments. Drop
            # frames on arrival, because a sender would detect a drop on its side.
            _run("ip", "-n", inside, "link", "set", device, "gso_max_segs", "1")
            _run("ip", "-n", self._switch, "link", "set", outside, "gso_max_segs", "1")
            # Shape both directions of the link. Incoming frames have passed the sender's link already.
            share = 1 - (1 - self._loss) ** 2
            rule = f"-A INPUT -i {device} -m statistic --mode random --probability {share:.6f} -j DROP"
            _run(*host.command(["iptables", *rule.split()]))
        return host


def check() -> None:
    """Raise CannotRun if a requirement is not met. Nothing has been created at this time."""
    if os.geteuid() != 0:
        raise CannotRun("it creates network namespaces and must run as root")
    for command in ("ip", "tc"):
        try:
            subprocess.run([command, "-V"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as failure:
            raise CannotRun(f"`{command}` does not run (Debian: iproute2): {failure}") from failure


def clear_leftovers() -> None:
    """Remove the namespaces of runs whose process no longer exists, and end the processes in them."""
    for name in _namespaces():
        owner = _OWN.fullmatch(name)
        if owner and not _alive(int(owner[1])):
            _remove(name)


def _inside(namespace: str, words: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", namespace, *words]


def _remove(namespace: str) -> None:
    """Remove a namespace. End all processes in it first: otherwise the namespace would continue to exist
    without a name."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in listed.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _namespaces() -> Iterator[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return (line.split()[0] for line in listed.stdout.splitlines() if line.strip())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _query(*words: str) -> Any:
    return json.loads(_run(*words))
