"""What podman or docker show of a pull on a terminal, made into lines for a log: bytes, layers, seconds, and a standstill."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from trainshed.runtimes.images.commands import logged
from trainshed.runtimes.images.tool import ToolFailed
from trainshed.runtimes.images.unpacking import megabytes
from trainshed.runtimes.port import Progress

_SECOND = 10**9
_EVERY, _SELDOM = 3 * _SECOND, 10
"""ns between two lines at the beginning; later each comes after another tenth of the time that has passed."""
_IDLE = 10 * _SECOND
"""ns without a byte after which that is told."""
_STUCK = 300 * _SECOND
"""ns without a byte after which a pull is given up."""
_SILENT = 3600 * _SECOND
"""The same where the tool has nothing to show: it writes layers to its store, or gives no sizes."""
_AT_ONCE = 6
"""Layers that podman fetches side by side; it names those that come after them when it begins with them."""

_LAYER = re.compile(
    r"(?:Copying blob (?:sha256:)?(?P<podman>[0-9a-f]{12})[0-9a-f]*|(?P<docker>[0-9a-f]{12}):) *(?P<state>.*)"
)
_SIZES = re.compile(r"(?<![\d.])([\d.]++) ?([kKMGT]?)(i?)[bB] ?/ ?([\d.]+) ?([kKMGT]?)(i?)[bB]")
_HERE = ("skipped", "Already exists")
_FETCHED = ("done", "Verifying Checksum", "Download complete", "Extracting", "Pull complete")


@dataclass(slots=True)
class _Layer:
    """`done`, `total`: bytes as they are sent; 0 of both: the tool has not said."""

    done: int = 0
    total: int = 0
    fetched: bool = False
    was_here: bool = False


class PullProgress:
    """Hears one pull of `reference`. `now`: nanoseconds. For one thread."""

    def __init__(self, reference: str, tell: Progress, now: Callable[[], int]) -> None:
        self._reference = reference
        self._tell = tell
        self._now = now
        self._began = self._moved = self._told = now()
        self._told_bytes = 0
        self._layers: dict[str, _Layer] = {}

    def hear(self, line: str) -> None:
        """Take a line; "" = some time has passed. Raises ToolFailed if nothing has come for too long."""
        now = self._now()
        if line and self._takes(line):
            self._moved = now
        still = now - self._moved
        if still > self._patience():
            raise ToolFailed(
                f"nothing has come from the registry for {still / _SECOND:.0f} seconds"
            )
        passed = now - self._began
        if now - self._told > max(_EVERY, passed // _SELDOM):
            self._tell(self._state(now, still))
            self._told, self._told_bytes = now, self._bytes()

    def summary(self) -> str:
        """What was pulled, for the log, when it is over."""
        seconds = f"{(self._now() - self._began) / _SECOND:.1f} s"
        layers = self._layers.values()
        here = sum(layer.was_here for layer in layers)
        came = len(layers) - here
        told = [f"{megabytes(self._bytes())} in {_layers(came)}"] if came else []
        if here:
            told.append(f"{_layers(here)} {'was' if here == 1 else 'were'} here already")
        return f"{self._reference} is pulled: {', '.join([*told, seconds])}."

    def _takes(self, line: str) -> bool:
        """Whether it says something new."""
        match = _LAYER.match(line)
        if match is None:
            level, message = logged(line)
            if level and "retrying" in message:
                self._tell(message)
            return True
        before = self._bytes(), len(self._layers), self._fetched()
        layer = self._layers.setdefault(match["podman"] or match["docker"], _Layer())
        state = match["state"]
        layer.was_here = layer.was_here or state.startswith(_HERE)
        layer.fetched = layer.fetched or state.startswith((*_HERE, *_FETCHED))
        if layer.fetched:
            layer.done = layer.total
        elif sizes := _SIZES.search(state):
            layer.done = _bytes(*sizes.group(1, 2, 3))
            layer.total = _bytes(*sizes.group(4, 5, 6))
        return before != (self._bytes(), len(self._layers), self._fetched())

    def _patience(self) -> int:
        """ns that may pass without a byte."""
        waiting = [layer for layer in self._layers.values() if not layer.fetched]
        sized = all(layer.total for layer in waiting)
        return _STUCK if not self._layers or (waiting and sized) else _SILENT

    def _state(self, now: int, still: int) -> str:
        told = [f"{(now - self._began) / _SECOND:.0f} s"]
        if self._layers:
            total = sum(layer.total for layer in self._layers.values())
            waiting = [layer for layer in self._layers.values() if not layer.fetched]
            may_grow = len(waiting) >= _AT_ONCE or not all(layer.total for layer in waiting)
            of = "of at least" if may_grow else "of"
            told = [
                f"{megabytes(self._bytes())} {of} {megabytes(total)}",
                f"{self._fetched()} {of} {_layers(len(self._layers))}",
                *told,
            ]
        came = self._bytes() - self._told_bytes
        if still > _IDLE:
            told.append(f"nothing has come for {still / _SECOND:.0f} s")
        elif came > 0:
            told.append(f"{came * _SECOND / (now - self._told) / 1e6:,.1f} MB/s")
        elif self._layers and self._fetched() == len(self._layers):
            told.append("being written to the store")
        return f"Pulling {self._reference}: {', '.join(told)}."

    def _bytes(self) -> int:
        return sum(layer.done for layer in self._layers.values())

    def _fetched(self) -> int:
        return sum(layer.fetched for layer in self._layers.values())


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _bytes(number: str, unit: str, binary: str) -> int:
    return round(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))
