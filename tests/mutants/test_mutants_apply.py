"""The list of mutants keeps up with the code: each patch still applies, to one place."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, mutated, text_of
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_in_one_place(mutant: Mutant) -> None:
    """`./dev mutants` would say so, in minutes; whoever changes the code hears of it at once."""
    assert mutated(mutant, text_of(mutant, ROOT)) != text_of(mutant, ROOT)


def test_there_are_enough_of_them_and_no_two_alike() -> None:
    assert len(MUTANTS) >= 24
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert max(Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS).values()) == 1


def test_what_catches_them_is_there() -> None:
    for mutant in MUTANTS:
        for argument in mutant.caught_by.arguments:
            if argument.startswith("tests/"):
                assert (ROOT / argument.partition("::")[0]).is_file(), argument
