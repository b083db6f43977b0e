"""The commands and programs that README.md and the guides show: fenced blocks, as they are typed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = {"api.md", "commands.md"}
"""References, which are made of definitions; they show no examples."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SHOWN = ("console", "sh", "python", "js")
"""The languages of what readers type; in `console` a command begins with `$ `, the rest is output."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    #: Relative to the checkout.
    page: str
    #: `PAGE#HEADING` above it, with a number if it is not the first one there.
    key: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a console, each with the lines that continue it."""
        commands: list[str] = []
        goes_on = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
            elif goes_on:
                commands[-1] += "\n" + line
            goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
        return commands


def pages() -> list[Path]:
    guides = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in MADE)
    return [ROOT / "README.md", *guides]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    seen: dict[str, int] = {}
    for match in _FENCE.finditer(text):
        *_, heading = ["", *_HEADING.findall(_FENCE.sub("", text[: match.start()]))]
        key = f"{name}#{heading}"
        if match[1] in SHOWN:
            seen[key] = seen.get(key, 0) + 1
        number = seen.get(key, 1)
        yield Block(name, key if number == 1 else f"{key} {number}", match[1], match[2])


def shown() -> list[Block]:
    """All blocks that readers type."""
    return [block for page in pages() for block in blocks(page) if block.language in SHOWN]


def without_comment(command: str) -> str:
    """A command without the remark behind it."""
    return re.sub(r"\s+#\s.*$", "", command, flags=re.MULTILINE).strip()
