"""The table from exceptions to codes, and the public texts of refused requests."""

from collections.abc import Iterator

from trainshed.api.calls.errors import CODES, refusal
from trainshed.core.errors import InvalidRequest, RequestError, Violation
from trainshed.wire.status import StatusCode


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
