"""The life of a training pipeline (facts/resources#pipelines): its backing job determines its state and its
model."""

import itertools
import json

from msgspec.structs import replace

from tests.sim.tuning_jobs import OUTPUT, pipeline
from tests.unit.jobs import CREATED, SECOND, job
from trainshed.core import pipelines
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.names import JobUid
from trainshed.core.pipelines import ModelVersion, Pipeline, Task

NOW = CREATED + 60 * SECOND
CANCEL = CancelRequested(CancelCause.USER, NOW)
J = JobState


def backing(state: JobState, *, started: int = 0) -> Job:
    return replace(job(), state=state, started=started)


def stored_pipeline(**how: object) -> Pipeline:
    """Return a pipeline as the API stores it, with its backing job."""
    return pipelines.create_pipeline(pipeline(**how), job())  # pyright: ignore[reportArgumentType] # by name


def after_jobs(subject: Pipeline, *jobs: Job | None) -> Pipeline:
    """Return the pipeline after it has processed these states of its backing job."""
    for n, shown in enumerate(jobs):
        transition = WorkTransition(subject, NOW + n * SECOND)
        pipelines.observe(transition, shown)
        subject = transition.step().job
    return subject


def draft(subject: Pipeline, **changes: object) -> Pipeline:
    model = subject.spec.model
    assert model is not None
    changed = replace(model, **changes)  # pyright: ignore[reportArgumentType] # by name
    return replace(subject, spec=replace(subject.spec, model=changed))


def registered_version(subject: Pipeline, *before: ModelVersion) -> ModelVersion:
    return pipelines.model_version(subject, pipelines.artifacts(subject, 0), before, NOW)


def test_state_and_start_time_of_a_pipeline_follow_the_training_job() -> None:
    """facts/resources#pipelines: PENDING until the job runs, and again during a retry. The start time is the
    first start."""
    at = CREATED + SECOND
    subject = after_jobs(stored_pipeline(), backing(J.QUEUED), backing(J.PREPARING))
    assert (subject.state, subject.started) == (J.PREPARING, 0)
    subject = after_jobs(subject, backing(J.RUNNING, started=at))
    assert (subject.state, subject.started) == (J.RUNNING, at)
    subject = after_jobs(subject, backing(J.PREPARING, started=at))
    assert subject.state is J.PREPARING
    subject = after_jobs(subject, backing(J.RUNNING, started=at))
    assert (subject.state, subject.started) == (J.RUNNING, at)


def test_model_directory_of_a_pipeline_is_the_model_directory_of_the_training_job() -> None:
    """facts/resources#pipelines: the directory is artifactUri, or else AIP_MODEL_DIR. For a tuning task it is
    the directory of the best trial."""
    assert pipelines.artifacts(stored_pipeline(), 0) == f"{OUTPUT}/model"
    assert pipelines.artifacts(draft(stored_pipeline(), artifact_uri="gs://b/x"), 0) == "gs://b/x"
    assert pipelines.artifacts(stored_pipeline(task=Task.TUNING), 4) == f"{OUTPUT}/4/model"


def test_first_model_version_gets_the_default_alias() -> None:
    version = registered_version(draft(stored_pipeline(), aliases=("champion",)))
    assert (version.version, version.aliases) == (1, ("default", "champion"))
    assert version.artifact_uri == f"{OUTPUT}/model"
    assert json.loads(version.public_json) == {"displayName": "m", "artifactUri": f"{OUTPUT}/model"}
    assert version.pipeline == str(stored_pipeline().name)
    assert registered_version(draft(stored_pipeline(), aliases=("default",))).aliases == ("default",)
    other = stored_pipeline()
    other = replace(other, name=replace(other.name, project_id="other"))
    assert registered_version(other).name.project_id == "other"


def test_new_model_version_does_not_move_the_default_alias() -> None:
    first = registered_version(stored_pipeline())
    third = replace(first, version=3, aliases=())
    version = registered_version(draft(stored_pipeline(), is_new_version=True), third, first)
    assert (version.version, version.aliases) == (4, ())


def test_pipeline_ends_together_with_the_training_job_and_stays_finished() -> None:
    """The test covers all sequences of four observations of the training job, in any state or deleted, with a
    cancel at any time."""
    states = (None, *JobState)
    for sights in itertools.product(states, repeat=4):
        for when in (None, 0, 2):
            _check_pipeline_life(sights, when)


def _check_pipeline_life(sights: tuple[JobState | None, ...], cancel_at: int | None) -> None:
    subject = stored_pipeline()
    for n, state in enumerate(sights):
        if n == cancel_at:
            cancel = WorkTransition(subject, NOW + n)
            pipelines.cancel(cancel, CANCEL)
            subject = cancel.step().job
        before = subject
        started = CREATED if state not in (None, J.QUEUED) else 0
        job = backing(state, started=started) if state else None
        transition = WorkTransition(subject, NOW + n)
        pipelines.observe(transition, job)
        if state is J.SUCCEEDED and not subject.state.is_final:
            pipelines.succeed(transition, registered_version(subject), JobUid(0))
        step = transition.step()
        subject = step.job
        if before.state.is_final:
            assert (subject, step.timeline) == (before, ())
        is_end = state in (None, J.SUCCEEDED, J.FAILED, J.CANCELLED)
        assert subject.state.is_final == (before.state.is_final or is_end)
        assert bool(subject.ended) == subject.state.is_final
        assert bool(subject.model) == (subject.state is J.SUCCEEDED)
        if subject.state is not before.state:
            assert subject.updated >= before.updated
