"""What an installer says, made fit for people: its list of packages in one line, and a sign of life while it is silent."""

from collections.abc import Callable

BEAT = 5.0
"""Seconds of silence after which a sign of life is given."""
NOISE = ("Using CPython ", "Using Python ")
"""How lines begin that say nothing new."""
_MOST_LINES = 10_000
"""Of one installer: a setup script may say anything, and each line goes into the job's log."""
_CHANGES = (" + ", " - ", " ~ ")
_BEGINS, _ENDS = "Downloading ", " Downloaded "


class Narration:
    """Takes the lines of one installer in their order and tells others. For one thread. `doing`: what it is at, as long as
    it has said nothing. `quiet`: what it says is nothing to people."""

    def __init__(
        self, tell: Callable[[str], None], doing: str = "working", *, quiet: bool = False
    ) -> None:
        self._tell = tell
        self._doing = doing
        self._quiet = quiet
        self._downloading: dict[str, str] = {}
        """Of each file that is on its way, by name: name and size."""
        self._changed: list[str] = []
        self._last = ""
        self._silent = 0.0
        self._heard = 0

    def hear(self, line: str) -> None:
        """The installer said something."""
        self._silent = 0.0
        if not line.strip() or self._quiet:
            return
        self._heard += 1
        if self._heard > _MOST_LINES:
            if self._heard == _MOST_LINES + 1:
                self._tell(f"It has said more than {_MOST_LINES} lines; the rest is not shown.")
            return
        if line.startswith(_CHANGES):
            self._changed.append(line.strip().replace("==", " "))
            return
        self.end()
        if line.startswith(_BEGINS):
            what = line.removeprefix(_BEGINS)
            self._downloading[what.partition(" ")[0]] = what
        elif line.startswith(_ENDS):
            self._downloading.pop(line.removeprefix(_ENDS).strip(), None)
        self._last = line.strip()
        # One space is how uv ends what it began; more of them are somebody's layout.
        self._tell(line.removeprefix(" "))

    def silence(self) -> None:
        """The installer said nothing for another `BEAT`."""
        self._silent += BEAT
        still = f"Still downloading {', '.join(self._downloading.values())}"
        if not self._downloading:
            still = f"Still working since {self._last!r}" if self._last else f"Still {self._doing}"
        self._tell(f"{still}: {self._silent:.0f} s.")

    def end(self) -> None:
        """What was gathered is told."""
        if self._changed:
            self._tell(", ".join(self._changed))
            self._changed = []
