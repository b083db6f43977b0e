"""An installation that came to nothing: whose fault it was, and what to do."""

from typing import Final

KILLED: Final = "The installer was killed from outside"
_FULL: Final = "No space left"
_UNSEEN: Final = "not found at: file://"


class InstallFailed(Exception):
    """uv ended with an error; `lines` are its last ones. `is_final`: it was ended, or not begun, for a cause that no other way
    of installing would get past; the last line says which."""

    def __init__(self, lines: tuple[str, ...], *, is_final: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.is_final = is_final

    @property
    def is_machine_trouble(self) -> bool:
        """Whether the machine or its network is to blame rather than what was asked for."""
        text = str(self)
        if self.is_final:
            return _FULL in text
        signs = (
            "error sending request",
            "Failed to fetch",
            "dns error",
            _FULL,
            KILLED,
            "timed out",
        )
        return any(sign in text for sign in signs)

    @property
    def remedy(self) -> str:
        """What to do if the machine or its network is to blame."""
        if _FULL in str(self):
            return (
                "A disk is full: make room (`trainshed runtimes gc` clears the cache), or choose"
                " another cache directory with $TRAINSHED_CACHE."
            )
        if KILLED in str(self):
            return "The kernel's log says whether memory ran out; submit the job again when there is more."
        return "Check that the package index can be reached from this machine (pip's or uv's settings)."

    @property
    def correction(self) -> str:
        """What to do if what was asked for is to blame."""
        text = (
            "Correct the package (its setup script and its requirements) and submit the job again."
        )
        if _UNSEEN in str(self):
            text += " Of this machine's files an installation sees those alone that the setting visible_paths names."
        return text
