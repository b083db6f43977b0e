"""A cluster asked both ways, for JSON and for fields, tells the same, whatever its release is."""

import pytest

from tests.slurm import record
from tests.slurm.lab import SlurmLab
from trainshed_cluster.slurm.queries import ASK_RELEASE, FIELDS, JSON, Queries, fitting


def told(lab: SlurmLab, queries: Queries) -> tuple[object, ...]:
    found = record.answers(lab, queries)
    jobs = {
        (job.name, job.state, job.nodes, job.gres, job.cpus, job.memory_bytes, job.starts)
        for job in queries.read_jobs(found["jobs"][0])
    }
    nodes = list(queries.read_nodes(found["nodes"], ""))
    steps = list(queries.read_steps(found["steps"][0]))
    return jobs, steps, nodes, list(queries.read_nodes(found["nodes-of-two"], "hi,tiny"))


def test_json_and_fields_tell_the_same(slurm_lab: SlurmLab) -> None:
    release = slurm_lab.slurm(*ASK_RELEASE)
    if fitting(release) is FIELDS:
        pytest.skip(f"{release.strip()} ignores filters with --json: ./dev test-slurm has others")
    running = record.begin_jobs(slurm_lab)
    try:
        assert told(slurm_lab, JSON) == told(slurm_lab, FIELDS)
    finally:
        slurm_lab.resume("node3")
        slurm_lab.clear()
        for one in running:
            slurm_lab.kill(one)
