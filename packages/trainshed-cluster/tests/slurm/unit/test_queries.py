"""JSON and fields tell the same of one moment: recordings of real releases (tests.slurm.record)."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from trainshed_cluster.slurm.queries import FIELDS, JSON, fitting
from trainshed_cluster.slurm.records import Job

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
RELEASES = ("24.11", "26.05")


def recorded(release: str, what: str, kind: str) -> list[str]:
    files = sorted((GOLDEN / release).glob(f"{what}-[0-9].{kind}"))
    return [file.read_text() for file in files]


def by_name(jobs: Iterable[Job]) -> dict[str, Job]:
    return {job.name: replace(job, description="") for job in jobs}


@pytest.mark.parametrize("release", RELEASES)
def test_jobs(release: str) -> None:
    (fields,), (json,) = (recorded(release, "jobs", kind) for kind in ("fields", "json"))
    told = by_name(JSON.read_jobs(json))
    assert told == by_name(FIELDS.read_jobs(fields))
    assert told["held"].held and told["held"].nodes == ("node1", "node2")
    assert told["waits"].pending and told["waits"].reason == "Resources"


@pytest.mark.parametrize("release", RELEASES)
def test_steps(release: str) -> None:
    (fields,), (json,) = (recorded(release, "steps", kind) for kind in ("fields", "json"))
    told = list(JSON.read_steps(json))
    assert told == list(FIELDS.read_steps(fields))
    assert [(step.name, step.nodes) for step in told] == [("step", ("node1",))]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("what", "partitions"), [("nodes", ""), ("nodes-of-two", "hi,tiny")])
def test_nodes(release: str, what: str, partitions: str) -> None:
    fields, json = (recorded(release, what, kind) for kind in ("fields", "json"))
    told = list(JSON.read_nodes(json, partitions))
    assert told == list(FIELDS.read_nodes(fields, partitions))
    assert [node.name for node in told] == ["node1", "node2", "node3"]
    assert told[2].reason == "a fan | is 'loud'" and "drain" in told[2].states
    assert told[0].in_default is (partitions == "")


def test_a_reason_behind_a_description_is_told_by_json_alone() -> None:
    """Since 24.11 Slurm takes jobs for partitions that their users may not use, and never starts them."""
    (json,) = recorded("24.11", "jobs", "json")
    text = "uid 61001 not in group permitted to use this partition (hi). groups allowed: lab-bob"
    json = json.replace('"state_reason": "Resources"', '"state_reason": "AccountNotAllowed"')
    json = json.replace('"state_description": ""', f'"state_description": "{text}"')
    (fields,) = recorded("24.11", "jobs", "fields")
    asked_both_ways = (
        by_name(FIELDS.read_jobs(fields.replace("Resources", text)))["waits"],
        next(job for job in JSON.read_jobs(json) if job.name == "waits"),
    )
    assert all(job.waits_in_vain for job in asked_both_ways)
    assert [job.reason for job in asked_both_ways] == [text, "AccountNotAllowed"]
    assert asked_both_ways[1].description == text


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error", '{"jobs": [{}]}', '{"nodes": 1}', "[]"]
)
def test_what_is_no_answer_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError):
        list(JSON.read_jobs(text))
    with pytest.raises(ValueError):
        list(JSON.read_nodes([text, "main*"], ""))
    with pytest.raises(ValueError):
        list(JSON.read_steps(text))


@pytest.mark.parametrize(
    ("release", "as_json"),
    [
        ("slurm-wlm 20.11.4", False),
        ("slurm-wlm 22.05.8\n", False),
        ("slurm 23.02.7", False),
        ("slurm 23.11.4", True),
        ("slurm-wlm 24.11.5", True),
        ("slurm 25.05.0-0rc1", True),
        ("slurm-wlm 26.05.5", True),
        ("", False),
    ],
)
def test_json_is_asked_for_where_filters_hold(release: str, as_json: bool) -> None:
    assert fitting(release) is (JSON if as_json else FIELDS)
