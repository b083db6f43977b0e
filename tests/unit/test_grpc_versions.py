"""v1beta1 over gRPC: which method serves it, and whose types an operation carries."""

from typing import Any

import pytest

from trainshed.api.calls.versions import BetaOperations, Version
from trainshed.api.grpc.transport import aliased, version_of
from trainshed.wire import pool

V1 = "/google.cloud.aiplatform.v1.JobService/GetCustomJob"
BETA = "/google.cloud.aiplatform.v1beta1.JobService/GetCustomJob"


@pytest.mark.parametrize(
    ("path", "served", "version"),
    [
        (BETA, V1, Version.V1BETA1),
        (V1, V1, Version.V1),
        ("/google.longrunning.Operations/GetOperation",) * 2 + (Version.UNSAID,),
    ],
)
def test_the_alias(path: str, served: str, version: Version) -> None:
    assert (aliased(path), version_of(path)) == (served, version)


def operation(name: str) -> Any:
    made: Any = pool.message_class("google.longrunning.Operation")(name=name, done=True)
    made.metadata.Pack(pool.message_class("google.cloud.aiplatform.v1.DeleteOperationMetadata")())
    made.response.Pack(pool.message_class("google.protobuf.Empty")())
    return made


def version(answer: Any) -> str:
    return answer.metadata.type_url.split(".")[-2]


def test_only_vertex_types_are_changed() -> None:
    answer = operation("a")
    BetaOperations().dress(answer, Version.V1BETA1)
    assert version(answer) == "v1beta1"
    assert answer.response.type_url == "type.googleapis.com/google.protobuf.Empty"


def test_who_says_v1_is_given_v1() -> None:
    known = BetaOperations()
    answer = operation("a")
    known.remember(answer)
    known.dress(answer, Version.V1)
    assert version(answer) == "v1"


def test_a_very_old_operation_is_forgotten_and_a_new_one_is_not() -> None:
    known = BetaOperations()
    for number in range(5_000):
        known.remember(operation(str(number)))
    first, last = operation("0"), operation("4999")
    known.dress(first, Version.UNSAID)
    known.dress(last, Version.UNSAID)
    assert (version(first), version(last)) == ("v1", "v1beta1")
