"""Records what a Slurm answers, of one moment asked both ways, for tests.golden.slurm.RELEASE:
TRAINSHED_TEST_SLURM=... python -m tests.slurm.record DIRECTORY."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import until
from trainshed_cluster.slurm.queries import FIELDS, JSON, Queries

OWN = [0]
"""Users whose jobs are asked for."""


def answers(lab: SlurmLab, queries: Queries) -> dict[str, list[str]]:
    """Of all that is asked: the answers to its commands."""
    asked = {
        "jobs": (queries.jobs(OWN),),
        "steps": (queries.steps(OWN),),
        "nodes": queries.nodes(""),
        "nodes-of-two": queries.nodes("hi,tiny"),
    }
    # Moments as numbers, as the engine has them too.
    return {
        what: [lab.slurm("env", "SLURM_TIME_FORMAT=%s", *command) for command in commands]
        for what, commands in asked.items()
    }


def begin_jobs(lab: SlurmLab) -> list[subprocess.Popen[bytes]]:
    """One that is held, with a step, and one that waits, on nodes of which one is drained."""
    held = ["--no-shell", "--nodes=2", "--exclude=node3", "--mem=100M", "--gres=gpu:t4:1"]
    lab.slurm("salloc", *held, "--cpus-per-task=1", "--job-name=held")
    number = lab.slurm("squeue", "-h", "-n", "held", "-o", "%i").strip()
    step = ["srun", f"--jobid={number}", "--overlap", "-N1", "-n1", "--job-name=step"]
    running = [lab.popen("hub", [*step, "sleep", "1000"])]
    waiting = ["salloc", "--no-shell", "--nodes=3", "--exclusive", "--job-name=waits", "--mem=1G"]
    running.append(lab.popen("hub", waiting, output=subprocess.DEVNULL))
    lab.drain("node3", "a fan | is 'loud'")
    for _ in until("the jobs to be told"):
        # Also why the second one waits.
        told = lab.slurm("squeue", "-h", "-O", "Name:|,Reason:").splitlines()
        reasons = dict(line.split("|", 1) for line in told)
        if reasons.get("waits", "None") != "None" and lab.slurm("squeue", "-h", "-s"):
            break
    return running


def main(directory: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        SlurmLab.open(Path(scratch), size=(2, 6000)) as lab,
    ):
        running = begin_jobs(lab)
        for kind, queries in (("fields", FIELDS), ("json", JSON)):
            for what, texts in answers(lab, queries).items():
                for number, text in enumerate(texts):
                    (directory / f"{what}-{number}.{kind}").write_text(text)
        for one in running:
            lab.kill(one)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
