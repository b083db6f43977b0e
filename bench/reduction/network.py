"""Hosts that are network namespaces, joined by a bridge in one of its own, with links of a chosen rate both
ways.

Made and removed by the benchmark; nothing of the machine's own network is touched. Names carry the process's
id, and what a run that was killed has left is cleared by the next one.
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
"""The same for both sides, whatever the machine's default."""
LATENCY = "50ms"
"""What a link's queue may hold, in time."""
SMALLEST_BURST = 128 << 10
BURST_SECONDS = 0.002
_HEADERS = 52
"""Of IPv4 and TCP with time stamps, in each segment."""
_ETHERNET = 14
PAYLOAD_SHARE = (MTU - _HEADERS) / (MTU + _ETHERNET)
"""Of the bytes that a link's rate is counted in."""
_SUBNET = "10.77.0"
"""Of every such network: they do not see each other."""
PREFIX = "tsbench"
_OWN = re.compile(rf"{PREFIX}(\d+)-\w+")


class CannotRun(Exception):
    """This machine has not what the benchmark needs. The message says what."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a host has sent and received. `sent`: bytes of frames as the stack hands them over, which are up
    to 64 KiB of payload behind one header; `sent_on_wire`: with the headers of every segment, 0 where the
    link has no rate; `received`: as `sent`."""

    sent: int
    sent_on_wire: int
    received: int

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(
            self.sent - before.sent,
            self.sent_on_wire - before.sent_on_wire,
            self.received - before.received,
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one address. `device` is the name of its interface inside."""

    namespace: str
    address: str
    device: str = "eth0"

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs `words` on this host; it becomes that program, in the same process."""
        return _inside(self.namespace, words)

    def traffic(self) -> Traffic:
        (link,) = _told("ip", "-n", self.namespace, "-s", "-j", "link", "show", self.device)
        (queue,) = _told(
            "tc", "-n", self.namespace, "-s", "-j", "qdisc", "show", "dev", self.device
        )
        stats = link["stats64"]
        on_wire = queue["bytes"] if queue["kind"] == "tbf" else 0
        return Traffic(stats["tx"]["bytes"], on_wire, stats["rx"]["bytes"])


class Network:
    """Hosts of workers and of reducers. A context manager: there while it is entered.

    `rate`, `reducer_rate`: of one link, each way, Mbit/s; 0 = as fast as the machine. `slowest`: of the first
    worker's; 0 = as the others'. `delay`: ms on each link, each way. `loss`: share of the segments that each
    link loses, each way.
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
        """Raises CannotRun; nothing is left then."""
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
        self.workers = [
            self._host(f"w{i}", 1 + i, (not i and self._slowest) or rate) for i in range(workers)
        ]
        self.reducers = [self._host(f"r{i}", 128 + i, reducer_rate) for i in range(reducers)]

    def _relay(self, names: Sequence[str]) -> None:
        """Cables that take their time, in the place of those that take none (`_host`)."""
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
            raise CannotRun("the relay, which delays what links carry, has ended at its start")

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
        _run(
            *("ip", "-n", inside, "address", "add", f"{host.address}/24", "dev", device),
            "noprefixroute",
        )
        # By the route: the setting of a namespace refuses what the machine allows only to root.
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
            # One segment behind one header, else a lost one takes dozens along. What is sent is lost where it
            # arrives: the sender would notice otherwise.
            _run("ip", "-n", inside, "link", "set", device, "gso_max_segs", "1")
            _run("ip", "-n", self._switch, "link", "set", outside, "gso_max_segs", "1")
            # Both ways of the link at once: it is the host's own, and what comes has gone over the sender's.
            share = 1 - (1 - self._loss) ** 2
            rule = (
                f"-A INPUT -i {device} -m statistic --mode random --probability {share:.6f} -j DROP"
            )
            _run(*host.command(["iptables", *rule.split()]))
        return host


def check() -> None:
    """Raises CannotRun for what can be known before anything is made."""
    if os.geteuid() != 0:
        raise CannotRun("it makes network namespaces, for which it must be root")
    for command in ("ip", "tc"):
        try:
            subprocess.run([command, "-V"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as failure:
            raise CannotRun(f"`{command}` does not run (Debian: iproute2): {failure}") from failure


def clear_leftovers() -> None:
    """Remove the namespaces of runs whose process is gone, and end what still runs in them."""
    for name in _namespaces():
        owner = _OWN.fullmatch(name)
        if owner and not _alive(int(owner[1])):
            _remove(name)


def _inside(namespace: str, words: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", namespace, *words]


def _remove(namespace: str) -> None:
    """Whatever is in it ends with it: namespaces that processes live in would stay, unnamed."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
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


def _told(*words: str) -> Any:
    return json.loads(_run(*words))
