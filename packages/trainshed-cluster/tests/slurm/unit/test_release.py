"""The script that replaces an agent whose service does not return (`slurm.commands.release_command`), with
stubs of Slurm's commands. test_leftover_allocations.py tests it with Slurm."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainshed_cluster.slurm.commands import release_command

UNAVAILABLE = "slurmctld is away"
RELEASE_CALLS = ["scontrol update JobId=12 JobName=trainshed-given-back", "scancel 12"]


def run_release(directory: Path, step: int, answers: Sequence[str]) -> list[str]:
    """Run the script of that step of job 12, and return its calls of Slurm's commands. `answers`: the job's
    steps at each query; the last answer is repeated."""
    did = directory / "did"
    did.touch()
    for number, answer in enumerate(answers):
        (directory / f"answer{number}").write_text(answer)
    # Slurm ends the script with its allocation.
    bodies = {
        "scontrol": f'echo "scontrol $*" >>{did}',
        "scancel": f'echo "scancel $*" >>{did}; kill $PPID',
        "sleep": "",
        "squeue": (
            f'cd {directory}; file=$(ls | grep answer | sort | head -1); cat "$file"; '
            f'! grep -q "{UNAVAILABLE}" "$file"; ends=$?; '
            '[ "$(ls | grep -c answer)" = 1 ] || rm "$file"; exit $ends'
        ),
    }
    for name, body in bodies.items():
        (directory / name).write_text(f"#!/bin/sh\n{body}\n")
        (directory / name).chmod(0o755)
    subprocess.run(
        release_command("/nowhere"),
        env={"PATH": f"{directory}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_STEP_ID": str(step)},
        check=False,
        timeout=60,
    )
    return did.read_text().splitlines()


@pytest.mark.parametrize(
    ("step", "answers"),
    [
        (0, ["12.extern\n12.0\n"]),
        (0, ["12.0\n12.1\n", "12.0\n12.1\n", "12.0\n"]),
        (3, [UNAVAILABLE, UNAVAILABLE, "12.3\n"]),
    ],
    ids=["only step", "until other steps have ended", "while slurmctld is down"],
)
def test_last_slurm_step_of_an_allocation_releases_the_allocation(
    tmp_path: Path, step: int, answers: list[str]
) -> None:
    assert run_release(tmp_path, step, answers) == RELEASE_CALLS


def test_slurm_step_releases_no_allocation_in_which_an_earlier_step_runs(tmp_path: Path) -> None:
    assert run_release(tmp_path, 1, ["12.0\n12.1\n"]) == []
