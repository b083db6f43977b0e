"""Records survive their stored form."""

import json
from random import Random
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from trainshed.core.job.exits import ExitRecord, JobError
from trainshed.core.job.spec import (
    Accelerators,
    Disk,
    JobSpec,
    Machine,
    Program,
    Scheduling,
    WorkerPool,
)
from trainshed.core.lifecycle.events import CancelRequested
from trainshed.core.lifecycle.records import Job, Outcome, Parent, Replica
from trainshed.core.names import Api, JobName, JobUid, ModelName, ReplicaId, StudyName
from trainshed.core.pipelines.records import ModelDraft, ModelVersion, Pipeline, PipelineSpec
from trainshed.core.runtime import RuntimeChoice
from trainshed.core.study.records import Measurement, Study, Trial
from trainshed.core.study.spec import (
    DecayCurveStopping,
    Limits,
    MedianStopping,
    Metric,
    Parameter,
    StudySpec,
)
from trainshed.core.tuning.records import RunningTrial, TuningJob, TuningSpec
from trainshed.core.works import Work
from trainshed.store.codec import (
    decode_cancel,
    decode_details,
    decode_job,
    decode_measurement,
    decode_operation,
    decode_study,
    decode_trial,
    decode_version,
    encode_cancel,
    encode_details,
    encode_job,
    encode_labels,
    encode_measurement,
    encode_operation,
    encode_study,
    encode_trial,
    encode_version,
    work_kind,
)
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.connections import load_statements

st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
for _cls in (
    *(
        ReplicaId,
        JobName,
        RuntimeChoice,
        Accelerators,
        Machine,
        Disk,
        Program,
        WorkerPool,
        Scheduling,
    ),
    *(JobSpec, ExitRecord, Replica, JobError, Outcome, Parent, Job),
    *(Parameter, Metric, MedianStopping, DecayCurveStopping, Limits, StudySpec),
    *(StudyName, Study, Measurement, Trial, TuningSpec, RunningTrial, TuningJob),
    *(ModelName, ModelDraft, PipelineSpec, Pipeline, ModelVersion, Operation),
):
    # Left to itself, hypothesis fills in the fields without a default only.
    _hints = get_type_hints(_cls)
    st.register_type_strategy(
        _cls, st.builds(_cls, **{name: st.from_type(hint) for name, hint in _hints.items()})
    )

SIMPLE = Job(
    uid=JobUid(1),
    name=JobName(Api.ML, "p", "", "j"),
    display_name="",
    spec=JobSpec(Api.ML, "r", (), Scheduling(), "{}"),
    public_json="{}",
    created=5,
    updated=5,
)


@settings(max_examples=45, deadline=None)
@given(st.one_of(st.from_type(Job), st.from_type(TuningJob), st.from_type(Pipeline)))
def test_every_work_comes_back_as_it_was(job: Work) -> None:
    kind = work_kind(job)
    back = decode_job(encode_job(job), encode_labels(job.labels), job.updated, kind)
    assert back == job
    for field in fields(job):
        assert type(getattr(back, field.name)) is type(getattr(job, field.name))
    assert hash(back) == hash(job)


@settings(max_examples=60, deadline=None)
@given(st.from_type(Trial))
def test_every_trial_comes_back_as_it_was(trial: Trial) -> None:
    back = decode_trial(encode_trial(trial))
    assert back == trial
    # 3 and 3.0 are equal, but only one of them is the value of a DOUBLE.
    assert repr(back) == repr(trial)


@given(st.from_type(Measurement))
def test_every_measurement_comes_back_as_it_was(measurement: Measurement) -> None:
    assert decode_measurement(encode_measurement(measurement)) == measurement


@settings(max_examples=30, deadline=None)
@given(st.from_type(Study))
def test_every_study_comes_back_as_it_was(study: Study) -> None:
    assert decode_study(encode_study(study)) == study


@given(st.from_type(Operation))
def test_every_operation_comes_back_as_it_was(operation: Operation) -> None:
    assert decode_operation(encode_operation(operation)) == operation


@given(st.from_type(ModelVersion), st.randoms())
def test_a_version_comes_back_with_the_aliases_that_it_still_has(
    version: ModelVersion, random: Random
) -> None:
    record = encode_version(version)
    aliases = [*version.aliases, "of another"]
    random.shuffle(aliases)
    assert decode_version(record, json.dumps(aliases).encode()) == version
    assert decode_version(record, b"[]") == replace(version, aliases=())


def test_an_operation_of_schema_2_is_a_delete_that_is_done() -> None:
    record = b'{"name":"n","kind":"delete","target":"t","created":1,"updated":2}'
    assert decode_operation(record) == Operation("n", OperationKind.DELETE, "t", 1, 2)


@given(st.from_type(CancelRequested))
def test_every_cancel_comes_back_as_it_was(cancel: CancelRequested) -> None:
    assert decode_cancel(encode_cancel(cancel)) == cancel


def test_details_come_back_as_they_were() -> None:
    details = {"a": [1, 2.5, None, True], "é": {"b": "x"}}
    assert decode_details(encode_details(details)) == details


def test_the_label_columns_win_over_the_record() -> None:
    record = encode_job(replace(SIMPLE, labels=(("old", "1"),)))
    read = decode_job(record, encode_labels((("new", "2"),)), 9)
    assert (read.labels, read.updated) == ((("new", "2"),), 9)
    assert decode_job(record, encode_labels(()), 3).updated == 5


def test_a_field_of_a_former_version_is_skipped() -> None:
    record = encode_job(SIMPLE).replace(b'{"uid":', b'{"dropped":[1],"uid":', 1)
    assert decode_job(record, b"[]", 0) == SIMPLE


def test_statements_are_named() -> None:
    statements = load_statements("reader.sql")
    assert statements["find"].startswith("SELECT") and not statements["find"].endswith(";")
    with pytest.raises(TypeError):
        statements["find"] = ""  # pyright: ignore[reportIndexIssue] (that it refuses is the point)
