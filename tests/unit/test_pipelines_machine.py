"""The life of a training pipeline (facts/resources#pipelines): what its backing job shows leads to its next
state, and to its model."""

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


def stored(**how: object) -> Pipeline:
    """As the API stores it, with its job."""
    return pipelines.created(pipeline(**how), job())  # pyright: ignore[reportArgumentType] # by name


def seen(subject: Pipeline, *jobs: Job | None) -> Pipeline:
    """It looks at its job as that comes along."""
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


def left(subject: Pipeline, *before: ModelVersion) -> ModelVersion:
    return pipelines.model_version(subject, pipelines.artifacts(subject, 0), before, NOW)


def test_it_goes_with_its_job() -> None:
    """facts/resources#pipelines: PENDING until the job runs, and again while it is tried again; its start is
    the first one."""
    at = CREATED + SECOND
    subject = seen(stored(), backing(J.QUEUED), backing(J.PREPARING))
    assert (subject.state, subject.started) == (J.PREPARING, 0)
    subject = seen(subject, backing(J.RUNNING, started=at))
    assert (subject.state, subject.started) == (J.RUNNING, at)
    subject = seen(subject, backing(J.PREPARING, started=at))
    assert subject.state is J.PREPARING
    subject = seen(subject, backing(J.RUNNING, started=at))
    assert (subject.state, subject.started) == (J.RUNNING, at)


def test_the_model_is_in_the_model_directory_of_the_job() -> None:
    """facts/resources#pipelines: artifactUri, else the directory that AIP_MODEL_DIR names; of a tuning task
    that of its best trial."""
    assert pipelines.artifacts(stored(), 0) == f"{OUTPUT}/model"
    assert pipelines.artifacts(draft(stored(), artifact_uri="gs://b/x"), 0) == "gs://b/x"
    assert pipelines.artifacts(stored(task=Task.TUNING), 4) == f"{OUTPUT}/4/model"


def test_the_first_version_of_a_model_is_its_default() -> None:
    version = left(draft(stored(), aliases=("champion",)))
    assert (version.version, version.aliases) == (1, ("default", "champion"))
    assert version.artifact_uri == f"{OUTPUT}/model"
    assert json.loads(version.public_json) == {"displayName": "m", "artifactUri": f"{OUTPUT}/model"}
    assert version.pipeline == str(stored().name)
    assert left(draft(stored(), aliases=("default",))).aliases == ("default",)
    other = stored()
    other = replace(other, name=replace(other.name, project_id="other"))
    assert left(other).name.project_id == "other"


def test_a_further_version_follows_the_newest_and_leaves_the_default_where_it_is() -> None:
    first = left(stored())
    third = replace(first, version=3, aliases=())
    version = left(draft(stored(), is_new_version=True), third, first)
    assert (version.version, version.aliases) == (4, ())


def test_whatever_its_job_does_the_pipeline_ends_with_it_and_stays_over() -> None:
    """Exhaustive: four looks at a job in any state, or deleted, with a cancel at any time."""
    states = (None, *JobState)
    for sights in itertools.product(states, repeat=4):
        for when in (None, 0, 2):
            _live(sights, when)


def _live(sights: tuple[JobState | None, ...], cancel_at: int | None) -> None:
    subject = stored()
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
            pipelines.succeed(transition, left(subject), JobUid(0))
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
