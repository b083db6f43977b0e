"""v1beta1 over gRPC: which method serves it, and whose types an operation carries."""

from typing import Any

from trainshed.api.calls.versions import BetaOperations, Version
from trainshed.wire import pool


def operation(name: str) -> Any:
    made: Any = pool.message_class("google.longrunning.Operation")(name=name, done=True)
    made.metadata.Pack(pool.message_class("google.cloud.aiplatform.v1.DeleteOperationMetadata")())
    made.response.Pack(pool.message_class("google.protobuf.Empty")())
    return made


def version(answer: Any) -> str:
    return answer.metadata.type_url.split(".")[-2]


def test_a_very_old_operation_is_forgotten_and_a_new_one_is_not() -> None:
    known = BetaOperations()
    for number in range(5_000):
        known.remember(operation(str(number)))
    first, last = operation("0"), operation("4999")
    known.dress(first, Version.UNSAID)
    known.dress(last, Version.UNSAID)
    assert (version(first), version(last)) == ("v1", "v1beta1")
