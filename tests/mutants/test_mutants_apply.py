"""The list of mutants matches the code: each patch applies to exactly one place."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, apply_mutant, text_of
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_code_that_a_mutant_replaces_occurs_exactly_once_in_its_file(mutant: Mutant) -> None:
    """`./dev mutants` reports it after minutes. This test reports it immediately."""
    assert apply_mutant(mutant, text_of(mutant, ROOT)) != text_of(mutant, ROOT)


def test_mutants_are_numerous_and_distinct() -> None:
    assert len(MUTANTS) >= 24
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert max(Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS).values()) == 1


def test_test_files_that_must_catch_mutants_exist() -> None:
    for mutant in MUTANTS:
        for argument in mutant.caught_by.arguments:
            if argument.startswith("tests/"):
                assert (ROOT / argument.partition("::")[0]).is_file(), argument
