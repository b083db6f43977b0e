"""Programs as the public writes them end well, and the models that they leave can be loaded again.

`./dev test-all` runs those that need small runtimes only, `./dev test-programs` all: see docs/programs.md.
`./dev test` has the stories of all clients (tests/e2e).
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
def test_ends_in_a_model_that_is_loaded_again(
    program: Program, run_program: Callable[[Program], None]
) -> None:
    run_program(program)
