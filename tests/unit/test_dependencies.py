"""spec/lifecycle#dependencies: the label, and the decisions about a job that waits for other jobs."""

import click
import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, Life, job
from trainshed.cli.run.request import after_label, read_after
from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.copies import copy_of
from trainshed.core.dependencies import Condition, Dependency, explain_dependencies, format_after, parse_after
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, DependencyEnded, JobAdmitted
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.names import Api, JobName, JobUid

SUCCEEDED, FINISHED = Condition.SUCCEEDED, Condition.FINISHED


def dependency(number: int, condition: Condition = SUCCEEDED) -> Dependency:
    name = JobName(Api.VERTEX, "demo", "us-central1", str(number))
    return Dependency(JobUid(number), name, condition)


def held_job(*dependencies: Dependency, scheduling: Scheduling | None = None) -> Job:
    return replace(job(scheduling=scheduling), dependencies=dependencies)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("17", (("17", SUCCEEDED),)),
        ("17_succeeded__my_job_finished", (("17", SUCCEEDED), ("my_job", FINISHED))),
        ("17__18_finished__run-1", (("17", SUCCEEDED), ("18", FINISHED), ("run-1", SUCCEEDED))),
        ("", ()),
        ("17__", ()),
        ("_finished", ()),
        ("Big", ()),
    ],
)
def test_label_lists_jobs_and_conditions(text: str, entries: tuple[tuple[str, Condition], ...]) -> None:
    assert parse_after(text) == entries
    assert parse_after(format_after(entries)) == entries


def test_label_has_space_for_three_uids() -> None:
    uid = "9" * 19
    entries = read_after([uid, f"{uid}:succeeded", "a:b"])
    assert entries == [(uid, SUCCEEDED), (uid, SUCCEEDED), ("a:b", SUCCEEDED)]
    assert after_label([uid] * 3, [SUCCEEDED] * 3) == f"trainshed-after={uid}__{uid}__{uid}"
    assert read_after(["train:finished"]) == [("train", FINISHED)]
    with pytest.raises(click.UsageError, match="at most three jobs"):
        after_label([uid] * 3, [FINISHED] * 3)


def test_job_starts_to_wait_for_capacity_after_its_last_dependency() -> None:
    life = Life(held_job(dependency(1), dependency(2, FINISHED)))
    assert life.job.is_held
    life.see(DependencyEnded(JobUid(2), JobState.CANCELLED))
    assert life.job.dependencies == (dependency(1),)
    assert "2 was cancelled. The job still waits until job 1 has succeeded" in str(life.timeline[-1])
    assert (life.job.eligible, life.job.unblocked) == (CREATED, 0)
    life.see(DependencyEnded(JobUid(1), JobState.SUCCEEDED))
    assert not life.job.is_held and life.job.state is JobState.QUEUED
    assert life.job.eligible == life.now
    assert life.timeline[-1].message.endswith("/1 has succeeded.")
    life.see(JobAdmitted(((PRIMARY, "node-1"),)))
    assert life.job.state is JobState.PREPARING


@pytest.mark.parametrize(
    ("state", "text"),
    [(JobState.FAILED, "has failed."), (JobState.CANCELLED, "was cancelled."), (None, "was deleted.")],
)
def test_job_fails_if_a_dependency_does_not_succeed(state: JobState | None, text: str) -> None:
    life = Life(held_job(dependency(1), dependency(2)))
    life.see(DependencyEnded(JobUid(2), state))
    ended = life.job
    assert (ended.state, ended.phase) == (JobState.FAILED, AttemptState.OVER)
    assert ended.error is not None and ended.outcome is not None
    first, advice = ended.error.message.split("\n")
    assert first.endswith(f"{dependency(2).name}, which {text}")
    assert "--after 2:finished" in advice == ended.error.advice
    assert (ended.error.code, ended.outcome.rule) == (9, "dependency_not_met")
    assert ended.ended == life.now and not ended.started and not ended.is_held
    before = life.job
    assert life.see(DependencyEnded(JobUid(1), JobState.SUCCEEDED)).job is before


def test_any_end_of_a_dependency_suffices_with_finished() -> None:
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, None):
        life = Life(held_job(dependency(1, FINISHED))).see(DependencyEnded(JobUid(1), state))
        assert not life.job.is_held and life.job.outcome is None


def test_end_of_another_job_and_repeated_ends_have_no_effect() -> None:
    life = Life(held_job(dependency(1)))
    before = life.job
    assert life.see(DependencyEnded(JobUid(9), JobState.FAILED)).job is before
    after = life.see(DependencyEnded(JobUid(1), JobState.SUCCEEDED)).job
    assert life.see(DependencyEnded(JobUid(1), None)).job is after


def test_cancel_ends_a_job_that_waits_for_other_jobs() -> None:
    life = Life(held_job(dependency(1))).see(CancelRequested(CancelCause.USER, CREATED))
    assert life.job.state is JobState.CANCELLED and not life.job.is_held
    after = life.job
    assert life.see(DependencyEnded(JobUid(1), JobState.SUCCEEDED)).job is after


def test_maximum_wait_time_starts_after_the_last_dependency() -> None:
    life = Life(held_job(dependency(1), scheduling=Scheduling(max_wait=1800 * SECOND)))
    assert deadlines(life.job) == ()
    life.see(DependencyEnded(JobUid(1), JobState.SUCCEEDED))
    (deadline,) = deadlines(life.job)
    assert deadline.at == life.now + 1800 * SECOND


def test_explanation_names_the_jobs_and_their_conditions() -> None:
    names = tuple(str(dependency(number).name) for number in (1, 2))
    assert explain_dependencies((dependency(1), dependency(2, FINISHED))) == Waiting(
        WaitReason.JOB, "waits until job 1 has succeeded and job 2 has finished", blockers=names
    )


def test_copy_of_a_job_has_no_dependencies() -> None:
    old = {"displayName": "a", "labels": {"trainshed-after": "1"}}
    assert copy_of(Api.VERTEX, old, 0, "7") == {"displayName": "a"}
    old["labels"] = {"trainshed-after": "1", "team": "x"}
    assert copy_of(Api.VERTEX, old, 0, "7")["labels"] == {"team": "x"}
