"""The table of the programs and how they went, in build/programs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.e2e.running import ROOT
from tests.programs.runner import Outcome
from tests.programs.table import PROGRAMS, Program

PLACE = ROOT / "build" / "programs"
_HEAD = (
    "| program | submitted by | image or runtime version | to its end, s | loaded, s | result |\n"
    "|---|---|---|---|---|---|"
)


def save(outcomes: Mapping[str, Outcome]) -> Path:
    """Add these outcomes to those of earlier runs, and write the table."""
    PLACE.mkdir(parents=True, exist_ok=True)
    record = PLACE / "outcomes.json"
    known: dict[str, dict[str, Any]] = json.loads(record.read_text()) if record.exists() else {}
    known |= {name: asdict(outcome) for name, outcome in outcomes.items()}
    record.write_text(json.dumps(known, indent=1))
    table = "\n".join([_HEAD, *(_row(program, known.get(program.name)) for program in PROGRAMS)])
    path = PLACE / "table.md"
    path.write_text(table + "\n")
    return path


def _row(program: Program, outcome: Mapping[str, Any] | None) -> str:
    cells = [f"`{program.name}`", program.client, program.runtime]
    if outcome is None:
        return f"| {' | '.join([*cells, '–', '–', 'not run'])} |"
    result = "fails" if outcome["error"] else "passes"
    if program.fails:
        result += f": {program.fails}"
    cells += [f"{outcome[key]:.0f}" for key in ("seconds", "loading")]
    return f"| {' | '.join([*cells, result])} |"
