"""The commands and programs in fenced blocks of README.md and the guides."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED_PAGES = {"api.md", "commands.md"}
"""Generated references without examples."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
INPUT_LANGUAGES = ("console", "sh", "python", "js")
"""The languages of input. In `console`, commands start with `$ `, and other lines are output."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block of a page."""

    #: Relative to the checkout.
    page: str
    #: `PAGE#HEADING` of its section, with a number after the first block.
    key: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Return the commands of a console, each with its continuation lines."""
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
    guides = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED_PAGES)
    return [ROOT / "README.md", *guides]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    seen: dict[str, int] = {}
    for match in _FENCE.finditer(text):
        *_, heading = ["", *_HEADING.findall(_FENCE.sub("", text[: match.start()]))]
        key = f"{name}#{heading}"
        if match[1] in INPUT_LANGUAGES:
            seen[key] = seen.get(key, 0) + 1
        number = seen.get(key, 1)
        yield Block(name, key if number == 1 else f"{key} {number}", match[1], match[2])


def input_blocks() -> list[Block]:
    """Return all blocks of input."""
    return [block for page in pages() for block in blocks(page) if block.language in INPUT_LANGUAGES]


def without_comment(command: str) -> str:
    """Return a command without its trailing comment."""
    return re.sub(r"\s+#\s.*$", "", command, flags=re.MULTILINE).strip()
