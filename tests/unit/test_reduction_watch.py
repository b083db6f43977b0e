"""Which replicas are watched for their part in a job's reduction, and what their shims are told of it
(spec/reduction)."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, REDUCER, WORKER, job
from tests.unit.test_engine_local_documents import HOST, PLAN, document
from trainshed.controller.launch_plans import reduction_part
from trainshed.core.environment import REDUCTION_REPORT
from trainshed.core.job.spec import JobSpec
from trainshed.core.launch import REDUCTION_REPORT_FILE, ReductionPart
from trainshed.core.names import ReplicaId
from trainshed.replica import protocol


def with_mode(spec: JobSpec, mode: str) -> JobSpec:
    pools = tuple(
        replace(pool, program=replace(pool.program, env=(("TRAINSHED_REDUCTION", mode),)))
        for pool in spec.pools
    )
    return replace(spec, pools=pools)


@pytest.mark.parametrize(
    ("replica", "watch"),
    [
        (PRIMARY, ReductionPart(reducers=4, is_expected=True)),
        (WORKER, ReductionPart(reducers=4, is_expected=True)),
        (ReplicaId(1, 1), ReductionPart(reducers=4)),
        (REDUCER, ReductionPart(reducers=4)),
        (ReplicaId(3, 0), ReductionPart()),
    ],
)
def test_who_is_watched(replica: ReplicaId, watch: ReductionPart) -> None:
    """spec/reduction: all that take part; reducers that were not used are told of by the first one of those
    that run the same program."""
    spec = job(1, 2, 4, 1, reducers=True).spec
    assert reduction_part(spec, replica) == watch
    assert reduction_part(with_mode(spec, "auto"), replica) == watch


def test_who_does_without_reducers_is_told_no_verdict() -> None:
    spec = with_mode(job(1, 2, 4, reducers=True).spec, "off")
    assert (
        reduction_part(spec, PRIMARY) == reduction_part(spec, WORKER) == ReductionPart(reducers=4)
    )


def test_a_job_without_reducers_costs_nothing() -> None:
    """Parameter servers in the third pool are none."""
    spec = job(1, 2, 4).spec
    assert {reduction_part(spec, replica) for replica in spec.replicas()} == {ReductionPart()}
    made = document()
    assert (made.observation.reducers, made.observation.reducers_expected) == (0, False)
    assert REDUCTION_REPORT_FILE not in made.program.environ


def test_the_shim_is_told_what_to_watch_and_the_program_where_to_report() -> None:
    """A program that cannot be shown /var/hypertune finds the file in its slot."""
    plan = replace(
        PLAN,
        environ=(*PLAN.environ, (REDUCTION_REPORT_FILE, REDUCTION_REPORT)),
        reduction=ReductionPart(reducers=4, is_expected=True),
    )
    made = document(plan=plan)
    assert (made.observation.reducers, made.observation.reducers_expected) == (4, True)
    assert made.program.environ[REDUCTION_REPORT_FILE] == REDUCTION_REPORT
    bare = document(replace(HOST, level=protocol.LEVEL_SESSION), plan)
    files = "/data/slots/5/2/workerpool1-0/files"
    assert bare.program.environ[REDUCTION_REPORT_FILE] == f"{files}/hypertune/reduction.json"
