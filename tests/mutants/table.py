"""All mutants of `mutants.toml`."""

import tomllib
from pathlib import Path
from typing import Any, Final

from tests.mutants.mutant import SIMULATION, Mutant, tests


def _mutant(entry: dict[str, Any]) -> Mutant:
    which, limit = entry.pop("tests", ()), entry.pop("limit", 120)
    return Mutant(**entry, caught_by=tests(*which, limit=limit) if which else SIMULATION)


_TABLE: Final = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))
MUTANTS: Final = tuple(map(_mutant, _TABLE["mutants"]))
