"""Validation of training pipelines: violations with their fields, and parsed specifications
(facts/resources#pipelines, facts/program#variables)."""

import json
from typing import Any

import pytest

from tests.unit.specs_requests import (
    FakeRuntimes,
    Request,
    container,
    custom_job,
    package,
    pool,
    rejected_fields,
)
from tests.unit.test_specs_tuning import STUDY
from trainshed.core.datasets.plans import SplitMethod, SplitRule
from trainshed.core.datasets.records import DataFiles, Dataset, DatasetKind, DatasetName
from trainshed.core.job import JobSpec
from trainshed.core.pipelines import ModelDraft
from trainshed.core.specs.pipeline import ParsedPipeline, parse_pipeline
from trainshed.core.tuning.records import TuningSpec

DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
CUSTOM = f"{DEFINITIONS}/custom_task_1.0.0.yaml"
AUTOML = f"{DEFINITIONS}/automl_image_classification_1.0.0.yaml"
TUNING = f"{DEFINITIONS}/hyperparameter_tuning_task_1.0.0.yaml"
OUTPUT = {"baseOutputDirectory": {"outputUriPrefix": "gs://bucket/out"}}
MODEL: Request = {"displayName": "model", "containerSpec": {"imageUri": "gcr.io/p1/serve:v1"}}
PARENT = "projects/p1/locations/us-central1/models/m1"
FILES: Request = {"datasetId": "123", "gcsDestination": {"outputUriPrefix": "gs://bucket/data/"}}
TABLES: Request = {"datasetId": "1-2", "bigqueryDestination": {"outputUri": "bq://p1"}}
DATA, SECOND_ALIAS = "input_data_config", "model_to_upload.version_aliases[1]"
FRACTIONS = f"{DATA}.fraction_split"


def pipeline(**changes: Any) -> Request:
    return {"displayName": "pipeline", "trainingTaskDefinition": CUSTOM, **changes}


def inputs(*pools: Request, **changes: Any) -> Request:
    return {**custom_job(*pools)["jobSpec"], **OUTPUT, **changes}


def tuning_inputs(**changes: Any) -> Request:
    return {
        "studySpec": STUDY,
        "trialJobSpec": inputs(),
        "maxTrialCount": 2,
        "parallelTrialCount": 1,
        **changes,
    }


def parse(
    request: Request, data: Request | None = None, max_trials: int = 0, dataset: Dataset | None = None
) -> ParsedPipeline:
    return parse_pipeline(
        request,
        inputs() if data is None else data,
        region="us-central1",
        runtimes=FakeRuntimes(),
        max_trials=max_trials,
        new_id="77",
        dataset=dataset,
        at=1_760_000_000 * 10**9,
    )


def violations(
    request: Request, data: Request | None = None, dataset: Dataset | None = None
) -> dict[str, str]:
    return rejected_fields(lambda: parse(request, data, dataset=dataset))


def job_spec(parsed: ParsedPipeline) -> JobSpec:
    assert isinstance(parsed.job.spec, JobSpec)
    return parsed.job.spec


def data(**changes: Any) -> Request:
    files = {**FILES, **changes}
    config = {name: value for name, value in files.items() if value is not None}
    return pipeline(inputDataConfig=config)


def model(**changes: Any) -> Request:
    return pipeline(modelToUpload={**MODEL, **changes})


ONE_FAULT: dict[str, tuple[Request, str]] = {
    "label": (pipeline(labels={"A": "b"}), "labels.A"),
    "no task": (pipeline(trainingTaskDefinition=""), "training_task_definition"),
    "AutoML": (pipeline(trainingTaskDefinition=AUTOML), "training_task_definition"),
    "model's label": (model(labels={"A": "b"}), "model_to_upload.labels.A"),
    "local artifact directory": (model(artifactUri="/tmp/x"), "model_to_upload.artifact_uri"),
    "no image": (model(containerSpec={"args": ["x"]}), "model_to_upload.container_spec.image_uri"),
    "alias in the form of a version": (model(versionAliases=["default", "1"]), SECOND_ALIAS),
    "duplicate alias": (model(versionAliases=["default", "default"]), SECOND_ALIAS),
    "long model id": ({**model(), "modelId": "a" * 64}, "model_id"),
    "malformed parent model name": ({**model(), "parentModel": "m1"}, "parent_model"),
    "parent model in another region": (
        {**model(), "parentModel": PARENT.replace("us-central1", "europe-west4")},
        "parent_model",
    ),
    "parent's version": ({**model(), "parentModel": f"{PARENT}@2"}, "parent_model"),
    "model ID and parent model": ({**model(), "modelId": "a", "parentModel": PARENT}, "model_id"),
    "malformed dataset ID": (data(datasetId="../x"), f"{DATA}.dataset_id"),
    "destination's path": (
        data(gcsDestination={"outputUriPrefix": "x"}),
        f"{DATA}.gcs_destination.output_uri_prefix",
    ),
    "BigQuery destination": (pipeline(inputDataConfig=TABLES), f"{DATA}.bigquery_destination"),
    "two splits": (data(fractionSplit={}, predefinedSplit={"key": "k"}), f"{DATA}.predefined_split"),
    "fractions above 1": (data(fractionSplit={"trainingFraction": 0.8, "testFraction": 0.3}), FRACTIONS),
    "negative fraction": (data(fractionSplit={"testFraction": -0.1}), f"{FRACTIONS}.test_fraction"),
    "split without a column": (data(predefinedSplit={}), f"{DATA}.predefined_split.key"),
    "split by time": (data(timestampSplit={"key": "when"}), f"{DATA}.timestamp_split"),
    "split by strata": (data(stratifiedSplit={"key": "kind"}), f"{DATA}.stratified_split"),
    "split by labels": (data(filterSplit={"trainingFilter": "labels.a=1"}), f"{DATA}.filter_split"),
    "annotation schema": (data(annotationSchemaUri="file.yaml"), f"{DATA}.annotation_schema_uri"),
    "saved query": (data(savedQueryId="1"), f"{DATA}.saved_query_id"),
    "persisted split assignment": (data(persistMlUseAssignment=True), f"{DATA}.persist_ml_use_assignment"),
}


def test_each_violation_in_a_pipeline_request_names_the_invalid_field() -> None:
    """spec/submit#refusals, facts/resources#pipelines: a request that breaks one rule has one violation."""
    names = {case: [*violations(request)] for case, (request, _) in ONE_FAULT.items()}
    assert names == {case: [field] for case, (_, field) in ONE_FAULT.items()}


def test_pipeline_error_lists_all_violations() -> None:
    """spec/submit#refusals: violations of the pipeline, its model, its data and its task inputs."""
    request = {
        "trainingTaskDefinition": TUNING,
        "modelToUpload": {"displayName": ""},
        "modelId": "-",
        "inputDataConfig": {},
    }
    wrong = tuning_inputs(trialJobSpec={"workerPoolSpecs": [pool(replicaCount="2")]}, maxTrialCount=0)
    assert set(violations(request, wrong)) == {
        "display_name",
        "model_to_upload.display_name",
        "model_to_upload.artifact_uri",
        "model_id",
        f"{DATA}.dataset_id",
        f"{DATA}.gcs_destination",
        "training_task_inputs.trial_job_spec.worker_pool_specs[0].replica_count",
        "training_task_inputs.max_trial_count",
    }


def test_pipeline_model_fields_are_parsed() -> None:
    """facts/resources#pipelines: modelToUpload, modelId and parentModel. artifactUri takes precedence over
    the output directory."""
    body = model(versionAliases=["default", "best"], labels={"a": "b"})
    draft = parse(body).spec.model
    assert draft == ModelDraft(
        model_id="77",
        display_name="model",
        public_json=json.dumps(body["modelToUpload"], separators=(",", ":")),
        aliases=("default", "best"),
        labels=(("a", "b"),),
    )
    model_spec = parse({**model(artifactUri="gs://bucket/m"), "modelId": "my_model-1"}).spec.model
    assert model_spec is not None
    assert (model_spec.model_id, model_spec.artifact_uri, model_spec.is_new_version) == (
        "my_model-1",
        "gs://bucket/m",
        False,
    )
    version = parse({**model(), "parentModel": PARENT}).spec.model
    assert version is not None and (version.model_id, version.is_new_version) == ("m1", True)


def test_pipeline_model_requires_an_artifact_directory() -> None:
    """facts/resources#pipelines: modelToUpload requires baseOutputDirectory or artifactUri."""
    nowhere = inputs(baseOutputDirectory=None)
    nowhere.pop("baseOutputDirectory")
    assert list(violations(model(), nowhere)) == ["model_to_upload.artifact_uri"]
    assert parse(model(artifactUri="gs://bucket/m"), nowhere).spec.output is None
    assert parse(pipeline(), nowhere).spec.model is None


SCHEMAS = "gs://google-cloud-aiplatform/schema/dataset"
IMPORT = f"{SCHEMAS}/ioformat/image_classification_single_label_io_format_1.0.0.yaml"
ANNOTATION = f"{SCHEMAS}/annotation/image_classification_1.0.0.yaml"
OF_TEXTS = ANNOTATION.replace("image", "text")
OF_BOXES = ANNOTATION.replace("classification", "bounding_box")


def dataset_of(kind: DatasetKind, *files: DataFiles) -> Dataset:
    return Dataset(DatasetName("p1", "us-central1", "123"), kind, "d", 1, 1, files=files)


TABLE = dataset_of(DatasetKind.TABULAR, DataFiles(("gs://bucket/a.csv",)))
PHOTOS = dataset_of(DatasetKind.IMAGE, DataFiles(("gs://bucket/a.csv",), IMPORT))


def test_input_data_variables_are_set_for_pipeline_programs() -> None:
    """facts/datasets#splits: every program gets four variables, before the user's variables."""
    user = container(env=[{"name": "AIP_DATA_FORMAT", "value": "mine"}])
    split = {"trainingFraction": 0.7, "validationFraction": 0.2, "testFraction": 0.1}
    spec = job_spec(parse(data(fractionSplit=split), inputs(pool(), user), dataset=TABLE))
    where = "gs://bucket/data/dataset-123-tables-2025-10-09T08:53:20.000000Z"
    expected = (
        ("AIP_DATA_FORMAT", "csv"),
        ("AIP_TRAINING_DATA_URI", f"{where}/training-*.csv"),
        ("AIP_VALIDATION_DATA_URI", f"{where}/validation-*.csv"),
        ("AIP_TEST_DATA_URI", f"{where}/test-*.csv"),
    )
    assert spec.pool(0).program.env == expected
    assert spec.pool(1).program.env == (*expected, ("AIP_DATA_FORMAT", "mine"))
    plan = spec.data
    assert plan is not None and (plan.directory, plan.files) == (where, TABLE.files)
    assert plan.rule.method is SplitMethod.FRACTION
    assert plan.rule.fractions == pytest.approx((0.7, 0.2, 0.1))
    assert json.loads(spec.job_json) == inputs(pool(), user)


def test_all_trials_of_a_tuning_pipeline_use_the_dataset_of_the_pipeline() -> None:
    parsed = parse(
        {**data(), "trainingTaskDefinition": TUNING},
        tuning_inputs(trialJobSpec=inputs(package())),
        dataset=TABLE,
    )
    assert isinstance(parsed.job.spec, TuningSpec)
    trial = parsed.job.spec.trial
    assert trial.data is not None and dict(trial.pool(0).program.env) == dict(trial.data.env)


@pytest.mark.parametrize(
    ("changes", "of", "rule", "ending"),
    [
        ({}, TABLE, SplitRule(), "tables"),
        ({}, PHOTOS, SplitRule(), "image"),
        ({"annotationSchemaUri": ANNOTATION}, PHOTOS, SplitRule(), "image_classification"),
        (
            {"predefinedSplit": {"key": "column"}},
            TABLE,
            SplitRule(SplitMethod.PREDEFINED, key="column"),
            "tables",
        ),
    ],
)
def test_dataset_split_rule_is_parsed(changes: Request, of: Dataset, rule: SplitRule, ending: str) -> None:
    plan = job_spec(parse(data(**changes), dataset=of)).data
    assert plan is not None and plan.rule == rule
    assert f"/dataset-123-{ending}-2025" in plan.directory
    assert plan.format == ("csv" if of is TABLE else "jsonl")


@pytest.mark.parametrize(
    ("changes", "of", "field"),
    [
        ({"annotationSchemaUri": ANNOTATION}, TABLE, "annotation_schema_uri"),
        ({"predefinedSplit": {"key": "a"}}, PHOTOS, "predefined_split"),
        ({"annotationSchemaUri": OF_TEXTS}, PHOTOS, "annotation_schema_uri"),
        ({"annotationSchemaUri": OF_BOXES}, PHOTOS, "dataset_id"),
        ({}, dataset_of(DatasetKind.TEXT), "dataset_id"),
    ],
)
def test_split_that_does_not_match_the_dataset_is_rejected(changes: Request, of: Dataset, field: str) -> None:
    assert list(violations(data(**changes), dataset=of)) == [f"{DATA}.{field}"]
