"""Answers of Slurm's commands are parsed equally for all releases, tested with recordings and with hostile
texts."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from trainshed_cluster.slurm.queries import Query, T, list_jobs, list_limits, list_nodes, list_steps

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
RELEASES = ("24.11", "26.05")
RECORDED = "\x1f"
"""The separator of the recordings."""


def parse_recorded(query: Query[T], text: str) -> T:
    return replace(query, separator=RECORDED).read(text)


def answer(release: str, what: str) -> str:
    return (GOLDEN / release / f"{what}-0.fields").read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_output_of_a_slurm_release_is_parsed(release: str) -> None:
    jobs = {job.name: job for job in parse_recorded(list_jobs([0]), answer(release, "jobs"))}
    assert jobs["held"].has_nodes and jobs["held"].nodes == ("node1", "node2")
    assert jobs["waits"].is_pending and jobs["waits"].reason == "Resources"
    steps = parse_recorded(list_steps([0]), answer(release, "steps"))
    assert [(step.name, step.nodes) for step in steps] == [("step", ("node1",))]
    for recording in ("nodes", "nodes-of-two"):
        nodes = parse_recorded(list_nodes(None), answer(release, recording))
        assert [node.name for node in nodes] == ["node1", "node2", "node3"]
        assert nodes[2].reason == "a fan | is 'loud'" and "drain" in nodes[2].states
        assert nodes[0].in_default is (recording == "nodes")


def test_partition_time_limit_is_parsed() -> None:
    rows = [("infinite", "main"), ("10:00", "short"), ("7-01:00:00", "week*")]
    limits = parse_recorded(list_limits(), "".join("\x1f".join((*row, "\n")) for row in rows))
    week = 7 * 86400 + 3600
    assert limits == {"short": 600, "week": week, "": week}


def test_job_never_starts_if_slurm_reports_that_its_user_may_not_use_the_partition() -> None:
    """Since 24.11, Slurm accepts jobs for partitions that their users may not use, and never starts them."""
    text = "uid 61001 not in group permitted to use this partition (hi). groups allowed: lab-bob"
    jobs = parse_recorded(list_jobs([0]), answer("24.11", "jobs").replace("Resources", text))
    assert [job.never_starts for job in jobs] == [True, False]


def test_slurm_job_name_cannot_inject_records_into_the_parsed_output() -> None:
    query = list_jobs([0])
    real = ["7", "ours", "RUNNING", "1", "1", "1M", "N/A", "node1", "1", "1001", "None"]
    forged = "\x1f".join(["9", "trainshed-lab-1-1-0", *real[2:9], "0", "None", "\n"])
    real[1] = f"mine\n{forged}"
    (job,) = query.read("".join(f"{value}{query.separator}" for value in real) + "\n")
    assert (job.id, job.user) == (7, 1001) and "trainshed-lab" in job.name


@pytest.mark.parametrize("text", ["slurm_load_jobs error", "7\x1fheld\x1fRUNNING\x1f\n"])
def test_invalid_output_of_a_slurm_command_is_rejected(text: str) -> None:
    for read in (
        lambda: parse_recorded(list_jobs([0]), text),
        lambda: parse_recorded(list_steps([0]), text),
        lambda: parse_recorded(list_nodes(None), text),
    ):
        with pytest.raises(ValueError, match="does not consist of rows of"):
            read()
