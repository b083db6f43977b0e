"""The diaries of the programs (`tests.chaos.program`), which record their actions, read from outside."""

import fcntl
import json
import re
from dataclasses import dataclass
from pathlib import Path

_BEGUN = re.compile(r"begun-(\d+)-([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class ObservedIncarnation:
    """An incarnation in the diary of its program. `lines`: lines that were certainly written. `end`: its own
    exit, or None if it was killed. `ended_at`: time just before the exit (ns). `start_time`, `last_sign`:
    first and last time (ns) of a write."""

    number: int
    token: str
    lines: int
    end: str | None
    ended_at: int
    start_time: int
    last_sign: int


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """All incarnations of a replica in its diary.

    `doubled`: two incarnations ran at the same time. `is_alive`: an incarnation is running now.
    """

    lives: tuple[ObservedIncarnation, ...]
    has_duplicate: bool
    is_alive: bool


def read(home: Path) -> ObservedReplica:
    """Return the diary of a replica. It is empty if the replica never started."""
    if not home.is_dir():
        return ObservedReplica((), False, False)
    names = sorted(path.name for path in home.iterdir())
    lives = tuple(_life(home, int(match[1]), match[2]) for match in map(_BEGUN.fullmatch, names) if match)
    return ObservedReplica(lives, any(name.startswith("two-") for name in names), _is_locked(home / "alive"))


def _life(home: Path, number: int, token: str) -> ObservedIncarnation:
    log = home / f"said-{number:03}"
    begun = (home / f"begun-{number:03}-{token}").stat().st_mtime_ns
    count, sign = 0, begun
    if log.exists():
        count, sign = int(log.read_text() or "0"), max(sign, log.stat().st_mtime_ns)
    ended = home / f"ended-{number:03}"
    end, at = json.loads(ended.read_text()) if ended.exists() else (None, 0)
    return ObservedIncarnation(number, token, count, end, at, begun, max(sign, at))


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
