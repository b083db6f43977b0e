"""Nodes that were found unfit, and are left alone for a while. Kept in a file, so that a restart of the
service does not let them in again."""

import time
from pathlib import Path

import msgspec

from trainshed.replica.system import durable


class Sentence(msgspec.Struct, frozen=True):
    """Why a node is left alone, and for how long."""

    cause: str
    #: Seconds since the epoch.
    until: float

    def __str__(self) -> str:
        end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.until))
        return f"quarantined until {end} UTC: {self.cause}"


class Quarantine:
    """`seconds`: for how long. `load` and `save` block; one owner, who saves what it has changed."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._nodes: dict[str, Sentence] = {}

    def load(self) -> None:
        """Raises OSError, ValueError: the file is damaged."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            self._nodes = msgspec.json.decode(data, type=dict[str, Sentence])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self._path} cannot be read ({error}); remove it") from error

    def save(self) -> None:
        """Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(self._path), msgspec.json.encode(self._nodes).decode())

    def add(self, node: str, cause: str, now: float, *, seconds: float | None = None) -> None:
        """`seconds`: for how long, if not for as long as any other."""
        until = now + (self._seconds if seconds is None else seconds)
        self._nodes = self._nodes | {node: Sentence(cause, until)}

    def remove(self, node: str) -> bool:
        """Whether it was there."""
        found = node in self._nodes
        self._nodes = {name: one for name, one in self._nodes.items() if name != node}
        return found

    def end(self, now: float) -> tuple[str, ...]:
        """Forget those whose time is over; their names."""
        over = tuple(name for name, one in self._nodes.items() if one.until <= now)
        for name in over:
            self.remove(name)
        return over

    def soonest(self) -> float | None:
        """When the next one's time is over, in seconds since the epoch; None = there is none."""
        return min((one.until for one in self._nodes.values()), default=None)

    def cause(self, node: str) -> str:
        """Why it is left alone, and until when; "" = it is not."""
        return str(self._nodes.get(node, ""))
