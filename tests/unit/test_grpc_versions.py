"""v1beta1 over gRPC: which method serves it, and whose types an operation carries."""

from typing import Any

import pytest

from trainshed.api.grpc.versions import BetaOperations, aliased, is_beta
from trainshed.wire import pool

V1 = "/google.cloud.aiplatform.v1.JobService/GetCustomJob"
BETA = "/google.cloud.aiplatform.v1beta1.JobService/GetCustomJob"


@pytest.mark.parametrize(
    ("path", "served", "beta"),
    [
        (BETA, V1, True),
        (V1, V1, False),
        ("/google.longrunning.Operations/GetOperation",) * 2 + (False,),
    ],
)
def test_the_alias(path: str, served: str, beta: bool) -> None:
    assert (aliased(path), is_beta(path)) == (served, beta)


def operation(name: str) -> Any:
    made: Any = pool.message_class("google.longrunning.Operation")(name=name, done=True)
    made.metadata.Pack(pool.message_class("google.cloud.aiplatform.v1.DeleteOperationMetadata")())
    made.response.Pack(pool.message_class("google.protobuf.Empty")())
    return made


def version(answer: Any) -> str:
    return answer.metadata.type_url.split(".")[-2]


def test_only_vertex_types_are_changed() -> None:
    answer = operation("a")
    BetaOperations().dress(answer, beta=True)
    assert version(answer) == "v1beta1"
    assert answer.response.type_url == "type.googleapis.com/google.protobuf.Empty"


def test_a_very_old_operation_is_forgotten_and_a_new_one_is_not() -> None:
    known = BetaOperations()
    for number in range(5_000):
        known.dress(operation(str(number)), beta=True)
    first, last = operation("0"), operation("4999")
    known.dress(first, beta=False)
    known.dress(last, beta=False)
    assert (version(first), version(last)) == ("v1", "v1beta1")
