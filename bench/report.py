"""Tables of the rows in Markdown, for the terminal and for files in build/bench. The documentation site
includes these files."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measures import Row


@dataclass(frozen=True, slots=True)
class Section:
    """The results of a part. `ours`, `floor`: headings of its two columns with figures. `load`: the load of
    the machine before the part. `lost`: the reason why rows are missing."""

    part: str
    ours: str
    floor: str
    rows: tuple[Row, ...]
    load: float
    lost: str = ""

    @property
    def held(self) -> bool:
        return all(row.held is not False for row in self.rows)


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}"


def commit() -> str:
    """Return the short commit of this checkout, with "+" if files have changed. Return "" without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    described = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return described.stdout.strip()


def tell(rows: Sequence[Row]) -> int:
    """Print one line per row. Return the exit status, which is 1 if a target is missed."""
    for row in rows:
        held = "" if row.held is None else ("held" if row.held else "MISSED")
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        print(f"{row.name}: {row.value}, floor {row.floor}: {ratio} {row.target} {held}")
    return 1 if any(row.held is False for row in rows) else 0


def table(section: Section) -> str:
    """Return the section as a Markdown table. The earlier load and the commit are below the table."""
    lines = [f"| what | {section.ours} | {section.floor} | ratio | target |", "|---|---|---|---|---|"]
    for row in section.rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}×"
        verdict = "" if row.held is None else (" held" if row.held else " MISSED")
        lines.append(f"| {row.name} | {row.value} | {row.floor} | {ratio} | {row.target}{verdict} |")
    if not section.rows:
        lines = []
    if section.lost:
        lines += ["", f"SKIPPED: {section.lost}"]
    below = f"{machine()}; load {section.load:.1f} before this part; commit {commit()}."
    return "\n".join([*lines, "", below])


def text(sections: Sequence[Section]) -> str:
    """Return all sections, each after the name of its part."""
    return "\n\n".join(f"## {section.part}\n\n{table(section)}" for section in sections)
