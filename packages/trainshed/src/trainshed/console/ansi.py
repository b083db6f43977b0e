"""Splits a line with terminal colours into pieces of text, each with the style classes that show it. Pure.

Every line begins plain, whatever the line before it ended with, because a reader may see any line first.
Colours beyond the first eight become the nearest of the eight, which can be read on light and on dark pages.
"""

import colorsys
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

_SGR: Final = re.compile("\x1b\\[([0-9;:]{0,100})m")
_GREY: Final = 0.25
"""Below this saturation or value a colour counts as grey."""
_HUES: Final = ((20, 1), (70, 3), (165, 2), (200, 6), (258, 4), (335, 5), (360, 1))
"""(largest hue in degrees, number of the nearest terminal colour), ascending."""


class Style(Struct, frozen=True):
    """How text is shown. Colours are 0 to 7 as terminals number them; None = those of the text around."""

    #: Colour of the text.
    ink: int | None = None
    #: Colour behind it.
    paper: int | None = None
    #: Any of "bold", "dim", "italic", "under", "strike", "inverse".
    marks: frozenset[str] = frozenset()

    @property
    def classes(self) -> str:
        """Its classes in the stylesheet, separated by spaces; "" = plain."""
        colours = [
            f"{kind}-{number}"
            for kind, number in (("ink", self.ink), ("paper", self.paper))
            if number is not None
        ]
        return " ".join([*colours, *sorted(self.marks)])


_PLAIN: Final = Style()
_ON: Final = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "inverse", 9: "strike"}
_OFF: Final = {
    22: {"bold", "dim"},
    23: {"italic"},
    24: {"under"},
    27: {"inverse"},
    29: {"strike"},
}


def pieces(text: str) -> list[tuple[str, str]]:
    """Return (text, classes) of each piece, in order; [] if the text sets no colour or style. Other terminal
    sequences stay in the pieces."""
    parts = _SGR.split(text)
    if len(parts) == 1:
        return []
    style, spans = _PLAIN, [(parts[0], "")]
    for codes, stretch in zip(parts[1::2], parts[2::2], strict=True):
        style = _after(style, codes)
        spans.append((stretch, style.classes))
    return [piece for piece in spans if piece[0]]


def _after(style: Style, codes: str) -> Style:
    numbers = iter(int(code[:4] or 0) for code in codes.replace(":", ";").split(";"))
    for number in numbers:
        if number == 0:
            style = _PLAIN
        elif number in _ON:
            style = replace(style, marks=style.marks | {_ON[number]})
        elif number in _OFF:
            style = replace(style, marks=style.marks - _OFF[number])
        elif number == 38:
            style = replace(style, ink=_extended(numbers))
        elif number == 48:
            style = replace(style, paper=_extended(numbers))
        elif number == 39:
            style = replace(style, ink=None)
        elif number == 49:
            style = replace(style, paper=None)
        elif number // 10 in (3, 9) and number % 10 < 8:
            style = replace(style, ink=number % 10)
        elif number // 10 in (4, 10) and number % 10 < 8:
            style = replace(style, paper=number % 10)
    return style


def _extended(numbers: Iterator[int]) -> int | None:
    """Read the colour that follows code 38 or 48: `5;N` of 256 colours, or `2;R;G;B`. None = no colour."""
    kind = next(numbers, 0)
    if kind == 2:
        return _nearest(next(numbers, 0), next(numbers, 0), next(numbers, 0))
    number = next(numbers, 0) if kind == 5 else -1
    if not 0 <= number < 256:
        return None
    if number < 16:
        return number % 8
    if number >= 232:
        return 7 if number >= 244 else 0
    levels = [(number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6]
    return _nearest(*(level * 51 for level in levels))


def _nearest(red: int, green: int, blue: int) -> int:
    parts = (min(part, 255) / 255 for part in (red, green, blue))
    hue, saturation, value = colorsys.rgb_to_hsv(*parts)
    if saturation < _GREY or value < _GREY:
        return 7 if value >= 0.5 else 0
    return next(number for most, number in _HUES if hue * 360 <= most)
