"""Programs in public style succeed, and their models can be loaded again.

`./dev test-all` runs those that only need small runtimes, `./dev test-programs` all: see docs/programs.md.
`./dev test` runs each client's workflow (tests/e2e).
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.gcloud import needs_gcloud
from tests.programs.table import PROGRAMS, Program


def _parameter(program: Program) -> Any:
    marks = [pytest.mark.soak if program.small else pytest.mark.programs]
    if program.client.startswith("gcloud"):
        marks += [pytest.mark.gcloud, needs_gcloud]
    if program.fails:
        marks.append(pytest.mark.xfail(reason=program.fails, strict=True))
    return pytest.param(program, id=program.name, marks=marks)


@pytest.mark.parametrize("program", [_parameter(program) for program in PROGRAMS])
def test_program_saves_a_model_that_can_be_loaded(
    program: Program, run_program: Callable[[Program], None]
) -> None:
    run_program(program)
