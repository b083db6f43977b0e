"""Sample tuning jobs, pipelines, studies, trials, models and operations for tests of stores."""

from msgspec.structs import replace

from tests.contract.store.store_samples import T0, make_job
from trainshed.core.datasets.records import DataFiles, Dataset, DatasetKind, DatasetName
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import Api, Collection, EvaluationName, JobName, JobUid, ModelName, StudyName
from trainshed.core.pipelines import ModelDraft, ModelEvaluation, ModelVersion, Pipeline, PipelineSpec, Task
from trainshed.core.study.records import Measurement, Study, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, StudySpec
from trainshed.core.tuning.records import RunningTrial, TuningJob, TuningSpec
from trainshed.core.works import Work
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.database import Store

PLACE = "projects/p/locations/us-central1"

STUDY = StudySpec(
    (
        Parameter("rate", ParameterType.DOUBLE, 1e-5, 1.0),
        Parameter("layers", ParameterType.INTEGER, 1, 8, default=3),
        Parameter("kind", ParameterType.CATEGORICAL, categories=("a", "b"), parent=1, when=(2, 3)),
    ),
    (Metric("loss", Goal.MINIMIZE),),
)


def make_tuning(uid: int, job_id: str = "", *, api: Api = Api.VERTEX) -> TuningJob:
    """Return a queued tuning job. Names of `ml` jobs have no location."""
    place = "" if api is Api.ML else "us-central1"
    trial = make_job(uid, api=api).spec
    return TuningJob(
        uid=JobUid(uid),
        name=JobName(
            api,
            "p",
            place,
            job_id or f"tuning{uid}",
            Collection.CUSTOM_JOBS if api is Api.ML else Collection.TUNING_JOBS,
        ),
        display_name=f"tuning {uid}",
        spec=TuningSpec(STUDY, trial, max_trials=12, parallel_trials=4),
        public_json="{}",
        created=T0 + uid,
        updated=T0 + uid,
        running=(RunningTrial(1, JobUid(uid + 1)),),
        next_trial=2,
        best_value=0.25,
    )


def make_pipeline(uid: int) -> Pipeline:
    draft = ModelDraft("m", "the model", "{}", aliases=("champion",), labels=(("a", "b"),))
    return Pipeline(
        uid=JobUid(uid),
        name=JobName(Api.VERTEX, "p", "us-central1", f"pipe{uid}", Collection.PIPELINES),
        display_name=f"pipeline {uid}",
        spec=PipelineSpec(Task.CUSTOM, "gs://b/out", draft),
        public_json="{}",
        created=T0 + uid,
        updated=T0 + uid,
    )


def child(parent: Work, uid: int, number: int = 0) -> Job:
    """Return a job that `parent` creates. Below an `ml` parent it has the name of a trial."""
    job = make_job(uid, api=parent.name.api)
    name = parent.name.of_trial(number) if parent.name.api is Api.ML else job.name
    return replace(job, name=name, parent=Parent(parent.uid, parent.name, number))


def make_study(uid: int) -> Study:
    return Study(
        StudyUid(uid),
        StudyName("p", "us-central1", f"study{uid}"),
        f"display {uid}",
        STUDY,
        '{"displayName": "x"}',
        T0 + uid,
    )


def make_trial(study: int, number: int = 0) -> Trial:
    """Return a trial with a value of each type. The store numbers a trial with `number` 0."""
    values = (("rate", 3.0), ("layers", 3), ("kind", "b"))
    return Trial(StudyUid(study), number, TrialState.ACTIVE, values, T0, started=T0 + 1)


def measurement(step: int, loss: float, elapsed: int = 0) -> Measurement:
    return Measurement((("loss", loss),), step, elapsed)


def suggesting(number: int, study: int) -> Operation:
    """Return an operation that waits for suggestions."""
    name = f"{PLACE}/studies/study{study}"
    return Operation(
        f"{name}/operations/{number}",
        OperationKind.SUGGEST,
        name,
        T0,
        T0,
        OperationState.RUNNING,
        StudyUid(study),
        "c",
        count=2,
    )


def finished_operation(number: int, kind: OperationKind = OperationKind.UPDATE) -> Operation:
    """Return a finished operation with a response."""
    return Operation(f"{PLACE}/operations/{number}", kind, "x", T0, T0, response="{}", response_type="Model")


def make_version(model_id: str, version: int, *aliases: str) -> ModelVersion:
    return ModelVersion(
        ModelName("p", "us-central1", model_id),
        version,
        f"{model_id} {version}",
        "{}",
        f"gs://b/{model_id}/{version}",
        T0 + version,
        T0 + version,
        aliases,
        (("team", "a"),),
        f"{PLACE}/trainingPipelines/7",
    )


async def register_model(store: Store, version: ModelVersion, operation: Operation) -> None:
    """Store a version of a model."""
    is_new = version.version == 1
    await store.models.register(version.name, lambda _: (version, operation), is_new=is_new)


def make_evaluation(number: int) -> ModelEvaluation:
    """Return an evaluation of the model `m`."""
    name = EvaluationName(ModelName("p", "us-central1", "m"), number)
    return ModelEvaluation(name, 1, '{"metrics":{"a":1}}', T0 + number)


def make_dataset(number: int, created: int = 0) -> Dataset:
    """Return an image dataset with an import."""
    name = DatasetName("p", "us-central1", f"d{number}")
    at = created or T0 + number
    files = (DataFiles(("gs://b/*.csv",), "gs://schema", (("k", "v"),)),)
    return Dataset(name, DatasetKind.IMAGE, f"data {number}", at, at, '{"a":1}', files=files)
