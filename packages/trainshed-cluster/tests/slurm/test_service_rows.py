"""The failure table's rows on a Slurm cluster, and programs that report how far they are: the very tests of
the local engine (e2e/test_failure_rows.py, e2e/test_progress.py), over a service whose replicas run on the
lab's nodes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import test_failure_rows as rows
from tests.e2e import test_progress as progress
from tests.e2e.conftest import commons, gate
from tests.e2e.running import Service
from tests.slurm.adopting import adopt
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import AGENTS

__all__ = ["commons", "gate"]

NOT_HERE = {
    # Many attempts each, of which the engine learns nothing that others do not show.
    "test_a_reducer_that_never_comes_up_is_given_up_and_the_workers_are_told",
    "test_crashes_are_tried_three_times_more",
    "test_any_other_end_of_the_program_s_own_is_final",
    "test_the_running_limit_counts_from_the_first_start_over_all_attempts",
    # The engine has no place for a log: agents keep it, and bring it later.
    "test_what_the_service_fails_at_is_tried_three_times_in_all",
    # Of the table alone.
    "test_every_row_of_the_table_has_a_scripted_run",
}


@pytest.fixture(scope="module")
def service(slurm_service: Service) -> Service:
    return slurm_service


@pytest.fixture
def shim_of(slurm_lab: SlurmLab) -> Callable[[str, str], int]:
    """The process of a job's replica that holds its program, on whichever node it is."""

    def find(job_id: str, replica: str) -> int:
        for node in slurm_lab.nodes:
            agents = slurm_lab.on_disk(node, AGENTS)
            for journal in agents.glob(f"*/slots/{job_id}/1/{replica}/journal"):
                shim: Any = json.loads(journal.read_text().splitlines()[1])["shim"]
                return slurm_lab.outer(node, shim)
        raise AssertionError(f"{replica} of {job_id} is on no node")

    return find


adopt(globals(), rows, left_out=NOT_HERE)
adopt(globals(), progress)
