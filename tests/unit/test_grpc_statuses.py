"""Refusals in gRPC's trailers: whole where they fit, and cut so that every client still reads them."""

import base64
from typing import Any

import pytest

from trainshed.api.calls.errors import Refusal
from trainshed.api.grpc.transport import MOST_TRAILER, GrpcStatus, grpc_status
from trainshed.wire import pool
from trainshed.wire.status import StatusCode, Violation


def refusal(count: int, size: int, message: int = 100) -> Refusal:
    listed = tuple(Violation(f"job_spec.x[{n}]", f"{n}" + "y" * size) for n in range(count))
    return Refusal(StatusCode.INVALID_ARGUMENT, "m" * message, listed)


def violations(answer: GrpcStatus) -> list[tuple[str, str]]:
    status: Any = pool.message_class("google.rpc.Status").FromString(answer.details)
    assert (status.code, status.message) == (answer.code, answer.message)
    bad: Any = pool.message_class("google.rpc.BadRequest")()
    for detail in status.details:
        detail.Unpack(bad)
    return [(v.field, v.description) for v in bad.field_violations]


def test_what_fits_is_told_whole() -> None:
    asked = refusal(20, 50)
    answer = grpc_status(asked)
    assert (answer.code, answer.message) == (3, asked.message)
    assert violations(answer) == [(v.field, v.description) for v in asked.violations]


@pytest.mark.parametrize(
    "asked",
    [
        refusal(1, 50, message=20_000),
        refusal(1, 20_000),
        refusal(30, 300, message=9_000),
        refusal(1_000, 300, message=300_000),
        Refusal(StatusCode.INTERNAL, "\N{GRINNING FACE}" * 5_000),
        Refusal(StatusCode.INVALID_ARGUMENT, "%" * 3_000, (Violation("f" * 9_000, "d"),)),
    ],
)
def test_nothing_is_larger_than_a_client_takes(asked: Refusal) -> None:
    """gRPC clients drop trailers above 8 KiB: percent-encoded text and base64 together."""
    answer = grpc_status(asked)
    on_the_wire = sum(
        1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in answer.message.encode()
    ) + len(base64.b64encode(answer.details))
    assert on_the_wire <= MOST_TRAILER
    assert (
        answer.message.endswith("over REST the answer is whole)") or answer.message == asked.message
    )


def test_every_field_is_named_before_any_is_dropped() -> None:
    """spec/submit#refusals: all the offending fields."""
    asked = refusal(60, 300, message=9_000)
    assert [field for field, _ in violations(grpc_status(asked))] == [
        v.field for v in asked.violations
    ]


def test_how_many_are_left_out_is_said() -> None:
    listed = violations(grpc_status(refusal(500, 300)))
    field, text = listed[-1]
    assert (field, text) == ("", f"... and {500 - (len(listed) - 1)} more; over REST all are told")
