"""All mutants, by what they break."""

from typing import Final

from tests.mutants.deciding import DECIDING
from tests.mutants.keeping import KEEPING
from tests.mutants.mutant import Mutant
from tests.mutants.running import RUNNING

MUTANTS: Final[tuple[Mutant, ...]] = (*DECIDING, *KEEPING, *RUNNING)
