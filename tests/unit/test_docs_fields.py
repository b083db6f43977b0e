"""The pages for people who come from a hosted service name every field of a job."""

import re
from pathlib import Path

import pytest

from trainshed.core.specs import ml, vertex
from trainshed.wire.pool import message_descriptor

DOCS = Path(__file__).parents[2] / "docs"
_VERTEX = "google.cloud.aiplatform.v1"
_ML = "google.cloud.ml.v1"
_TABLES = [
    ("coming-from-vertex.md", _VERTEX, "CustomJob"),
    ("coming-from-vertex.md", _VERTEX, "CustomJobSpec"),
    ("coming-from-vertex.md", _VERTEX, "WorkerPoolSpec"),
    ("coming-from-vertex.md", _VERTEX, "Scheduling"),
    ("coming-from-vertex.md", _VERTEX, "HyperparameterTuningJob"),
    ("coming-from-ai-platform.md", _ML, "Job"),
    ("coming-from-ai-platform.md", _ML, "TrainingInput"),
    ("coming-from-ai-platform.md", _ML, "ReplicaConfig"),
    ("coming-from-ai-platform.md", _ML, "Scheduling"),
    ("coming-from-ai-platform.md", _ML, "HyperparameterSpec"),
]
_NESTED = ("machineSpec", "containerSpec", "pythonPackageSpec", "diskSpec")


def _rows(page: str, message: str) -> dict[str, str]:
    """What the table of a message says, by the names in a row's first cell."""
    text = (DOCS / page).read_text()
    table = re.search(
        rf"^\| `{message}` \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    assert table, f"{page} has no table of {message}"
    return {
        name.rpartition(".")[2] if name.partition(".")[0] in _NESTED else name: says
        for row in table[1].splitlines()
        for cell, says in [row.strip("| ").split(" | ", 1)]
        for name in re.findall(r"`([\w.]+)`", cell)
    }


def _fields(package: str, message: str) -> set[str]:
    """The fields of a message; of a worker pool those of its specs as well."""
    found: set[str] = set()
    descriptor = message_descriptor(f"{package}.{message}")
    assert descriptor is not None
    for field in descriptor.fields:
        if field.json_name in _NESTED and field.json_name != "pythonPackageSpec":
            assert field.message_type is not None
            found |= {inner.json_name for inner in field.message_type.fields}
        else:
            found.add(field.json_name)
    return found


@pytest.mark.parametrize(("page", "package", "message"), _TABLES)
def test_every_field_of_a_message_has_its_row(page: str, package: str, message: str) -> None:
    named = {name.partition(".")[0] for name in _rows(page, message)}
    missing = _fields(package, message) - named
    assert not missing


def test_fields_that_are_warned_of_are_told_so() -> None:
    """The tables of the code and of the pages are the same."""
    spec = _rows("coming-from-vertex.md", "CustomJobSpec")
    warned = {name for name, says in spec.items() if says.startswith("taken, with a warning")}
    assert warned == set(vertex.WITHOUT_EFFECT)
    rows = _rows("coming-from-ai-platform.md", "TrainingInput")
    warned = {name for name, says in rows.items() if says.startswith("taken, with a warning")}
    assert warned == set(ml.WITHOUT_EFFECT)
