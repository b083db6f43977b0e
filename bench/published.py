"""Which targets held in the runs that were published: on how many machines, on how many days.

`published.json` beside this has a run for each part and time that `./dev bench --publish` measured. One run
says what one machine could do in one hour.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.measures import Row

FILE: Final = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Run:
    """One part, measured once."""

    part: str
    #: `2026-11-22`.
    day: str
    #: Processors, kernel and Python, as below the tables: machines that are alike in these count as one.
    machine: str
    #: Of the code that was measured, or that brought the figures; short.
    commit: str
    #: By a row's name and target: whether it held.
    held: dict[str, bool]


def key(row: Row) -> str:
    """What a row is known by: of another target it is another row."""
    return f"{row.name} {row.target}"


def load(file: Path = FILE) -> list[Run]:
    """All runs, oldest first."""
    if not file.exists():
        return []
    return [Run(**run) for run in json.loads(file.read_text("utf-8"))]


def save(runs: Iterable[Run], file: Path = FILE) -> None:
    """Write all runs down, one a line."""
    lines = ",\n".join(json.dumps(asdict(run), ensure_ascii=False) for run in runs)
    file.write_text(f"[\n{lines}\n]\n", "utf-8")


def judged(runs: Sequence[Run], part: str, row: Row) -> str:
    """On how many machines and days a row held in all runs there; "" if no run has it."""
    found = [run for run in runs if run.part == part and key(row) in run.held]
    if not found:
        return ""
    machines, days = defaultdict[str, list[bool]](list), defaultdict[str, list[bool]](list)
    for run in found:
        machines[run.machine].append(run.held[key(row)])
        days[run.day].append(run.held[key(row)])
    on = f"{sum(map(all, machines.values()))} of {len(machines)} machines"
    return f"{on}, {sum(map(all, days.values()))} of {len(days)} days"
