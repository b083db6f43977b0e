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
        "parts": [{"at": "1"}],
        "raw": [1],
    }
    fields = Fields(body)
    assert fields.text("name", required=True) == "a"
    assert (fields.number("size"), fields.flag("on")) == (2.5, True)
    assert (fields.choice("kind", ("x", "y")), fields.mapping("more")) == ("y", {"x": 1})
    assert [part.text("at") for part in fields.objects("parts")] == ["1"]
    assert fields.raw("raw") == [1]
    assert fields.has("name")
    fields.refuse()


def test_what_is_not_given_has_a_default() -> None:
    fields = Fields({"nothing": None})
    assert (fields.text("a"), fields.number("b", least=3), fields.flag("c")) == ("", 3, False)
    assert (fields.choice("d", ("x",), default="x"), list(fields.objects("e"))) == ("x", [])
    assert not fields.has("nothing")
    fields.refuse()


def test_every_fault_is_told_at_once_with_its_path() -> None:
    fields = Fields({"size": True, "kind": "z", "parts": [{"odd": 1, "at": 2}, 3], "other": 1})
    fields.text("name", required=True)
    fields.number("size")
    fields.choice("kind", ("x", "y"))
    for part in fields.objects("parts"):
        part.text("at")
        part.fault("", "it is too late")
    names = faults(fields)
    assert set(names) == {
        "name",
        "size",
        "kind",
        "parts[0].at",
        "parts[0].odd",
        "parts[0]",
        "parts[1]",
        "other",
    }
    assert names["parts[1]"] == "It must be an object, not a number."
