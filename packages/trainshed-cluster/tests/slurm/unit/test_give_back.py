"""What an agent becomes that its service has left alone (`slurm.commands.give_back`), with commands
in place of Slurm's; with Slurm's own: slurm/test_left_behind.py."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainshed_cluster.slurm.commands import give_back

AWAY = "slurmctld is away"
GIVEN_BACK = ["scontrol update JobId=12 JobName=trainshed-given-back", "scancel 12"]


def becomes(directory: Path, step: int, answers: Sequence[str]) -> list[str]:
    """What the agent of that step of job 12 has Slurm do, which answers in turn that these are the job's
    steps; the last answer is repeated."""
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
            f'! grep -q "{AWAY}" "$file"; ends=$?; '
            '[ "$(ls | grep -c answer)" = 1 ] || rm "$file"; exit $ends'
        ),
    }
    for name, body in bodies.items():
        (directory / name).write_text(f"#!/bin/sh\n{body}\n")
        (directory / name).chmod(0o755)
    subprocess.run(
        give_back("/nowhere"),
        env={
            "PATH": f"{directory}:/usr/bin:/bin",
            "SLURM_JOB_ID": "12",
            "SLURM_STEP_ID": str(step),
        },
        check=False,
        timeout=60,
    )
    return did.read_text().splitlines()


@pytest.mark.parametrize(
    ("step", "answers"),
    [
        (0, ["12.extern\n12.0\n"]),
        (0, ["12.0\n12.1\n", "12.0\n12.1\n", "12.0\n"]),
        (3, [AWAY, AWAY, "12.3\n"]),
    ],
    ids=["alone", "until others are gone", "while slurmctld is away"],
)
def test_the_last_of_an_allocation_gives_it_back(
    tmp_path: Path, step: int, answers: list[str]
) -> None:
    assert becomes(tmp_path, step, answers) == GIVEN_BACK


def test_one_that_is_not_the_first_leaves_it_to_that(tmp_path: Path) -> None:
    assert becomes(tmp_path, 1, ["12.0\n12.1\n"]) == []
