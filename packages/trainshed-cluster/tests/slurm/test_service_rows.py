"""The failure table's rows on a Slurm cluster, and programs that report how far they are: the very tests of
the local engine (e2e/test_failure_rows.py, e2e/test_progress.py), over a service whose replicas run on the
lab's nodes."""

from collections.abc import Collection
from types import ModuleType
from typing import Any

import pytest

from tests.e2e import test_failure_rows as rows
from tests.e2e import test_progress as progress
from tests.e2e.conftest import commons, gate
from tests.e2e.running import Service

__all__ = ["commons", "gate"]

# engines/test_remote.py proves what the engine reports of each end, the local rows what becomes of it.
pytestmark = pytest.mark.soak

NOT_HERE = {
    # Many attempts each, of which the engine learns nothing that others do not show.
    "test_crashes_are_tried_three_times_more",
    "test_any_other_end_of_the_program_s_own_is_final",
    # The engine has no place for a log: agents keep it, and bring it later.
    "test_what_the_service_fails_at_is_tried_three_times_in_all",
    # Of the table alone.
    "test_every_row_of_the_table_has_a_scripted_run",
}


def adopt(names: dict[str, Any], module: ModuleType, *, left_out: Collection[str] = ()) -> None:
    """Make a module's tests and fixtures those of the module with these global names, which has its own
    `service`."""
    for name, value in vars(module).items():
        if not name.startswith("__") and name not in left_out and name not in names:
            names[name] = value


@pytest.fixture(scope="module")
def service(slurm_service: Service) -> Service:
    return slurm_service


adopt(globals(), rows, left_out=NOT_HERE)
adopt(globals(), progress)
