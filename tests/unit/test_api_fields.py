"""Bodies of our own methods: every fault at once, with its path."""

from typing import Any

import pytest

from trainshed.api.trainshed_v1.call import Fields
from trainshed.core.errors import InvalidRequest


def faults(fields: Fields) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as raised:
        fields.refuse()
    return {violation.field: violation.description for violation in raised.value.violations}


def test_what_is_right_is_read() -> None:
    body: dict[str, Any] = {
        "name": "a",
        "size": 2.5,
        "on": True,
        "kind": "y",
        "more": {"x": 1},
        "raw": [1],
    }
    fields = Fields(body)
    assert fields.text("name", required=True) == "a"
    assert (fields.number("size", most=3), fields.flag("on")) == (2.5, True)
    assert (fields.choice("kind", ("x", "y")), fields.mapping("more")) == ("y", {"x": 1})
    assert fields.raw("raw") == [1]
    fields.refuse()


def test_what_is_not_given_has_a_default() -> None:
    fields = Fields({"nothing": None})
    assert (fields.text("a"), fields.number("b", most=3), fields.flag("c")) == ("", 0, False)
    assert fields.raw("nothing") is None
    fields.refuse()


def test_every_fault_is_told_at_once_with_its_name() -> None:
    fields = Fields({"size": True, "kind": "z", "days": 9, "other": 1})
    fields.text("name", required=True)
    fields.number("size", most=3)
    fields.number("days", most=3)
    fields.choice("kind", ("x", "y"))
    names = faults(fields)
    assert set(names) == {"name", "size", "days", "kind", "other"}
    assert names["size"] == "It must be a number, not a boolean."
