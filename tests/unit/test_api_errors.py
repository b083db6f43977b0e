"""The table from exceptions to codes, and the public texts of refused requests."""

from collections.abc import Iterator

import pytest

from trainshed.api.calls.errors import CODES, NotServed, refusal
from trainshed.core.errors import InvalidRequest, NotFound, RequestError, Violation
from trainshed.wire.status import StatusCode, WireError
from trainshed.wire.status import Violation as WireViolation


def _leaves(kind: type[Exception]) -> Iterator[type[Exception]]:
    children = kind.__subclasses__()
    if not children:
        yield kind
    for child in children:
        yield from _leaves(child)


def test_every_leaf_of_the_request_errors_has_a_code() -> None:
    """spec/submit#refusals: one table maps them; a test proves that every leaf class is in it."""
    assert set(_leaves(RequestError)) <= set(CODES)


TWO = InvalidRequest((Violation("a.b", "Wrong."), Violation("c", "Wrong too.")))


def test_vertex_lists_all_violations_in_one_text() -> None:
    """facts/limits#error-texts."""
    refused = refusal(TWO, "aiplatform_v1")
    assert refused is not None
    assert refused.code is StatusCode.INVALID_ARGUMENT
    assert refused.message == (
        "List of found errors:\t1.Field: a.b; Message: Wrong.\t2.Field: c; Message: Wrong too.\t"
    )
    assert [violation.field for violation in refused.violations] == ["a.b", "c"]


def test_ml_names_each_field_on_a_line_of_its_own() -> None:
    """facts/limits#error-texts."""
    refused = refusal(TWO, "ml_v1")
    assert refused is not None
    assert refused.message == "Field: a.b Error: Wrong.\nField: c Error: Wrong too."


def test_the_wire_speaks_for_itself() -> None:
    refused = refusal(WireError((WireViolation("x", "Bad x."),)), "ml_v1")
    assert refused is not None
    assert (refused.code, refused.message) == (StatusCode.INVALID_ARGUMENT, "Bad x.")


@pytest.mark.parametrize(
    ("error", "code"),
    [(NotFound("n"), StatusCode.NOT_FOUND), (NotServed("s"), StatusCode.UNIMPLEMENTED)],
)
def test_other_errors_say_their_own_message(error: Exception, code: StatusCode) -> None:
    refused = refusal(error, "aiplatform_v1")
    assert refused is not None
    assert (refused.code, refused.message) == (code, str(error))


def test_a_fault_of_our_own_is_no_refusal() -> None:
    assert refusal(ZeroDivisionError("inside"), "aiplatform_v1") is None
