"""Records survive their stored form."""

from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.core.lifecycle.events import CancelRequested
from trainshed.core.lifecycle.records import ExitRecord, Job, JobError, Outcome, Replica
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeChoice
from trainshed.core.specs.model import (
    Accelerators,
    Disk,
    JobSpec,
    Machine,
    Program,
    Scheduling,
    WorkerPool,
)
from trainshed.store.codec import (
    decode_cancel,
    decode_details,
    decode_job,
    encode_cancel,
    encode_details,
    encode_job,
    encode_labels,
)
from trainshed.store.statements import load_statements

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
    *(JobSpec, ExitRecord, Replica, JobError, Outcome, Job),
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


@settings(max_examples=60, deadline=None)
@given(st.from_type(Job))
def test_every_job_comes_back_as_it_was(job: Job) -> None:
    back = decode_job(encode_job(job), encode_labels(job.labels), job.updated)
    assert back == job
    for field in fields(Job):
        assert type(getattr(back, field.name)) is type(getattr(job, field.name))
    assert hash(back) == hash(job)


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
    statements = load_statements("trainshed.store.sqlite", "reader.sql")
    assert statements["find"].startswith("SELECT") and not statements["find"].endswith(";")
    with pytest.raises(TypeError):
        statements["find"] = ""  # pyright: ignore[reportIndexIssue] (that it refuses is the point)
