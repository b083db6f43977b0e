"""Items of imported files in the form for programs (facts/datasets#formats)."""

import json
from typing import Any

import pytest

from tests.unit.datasets_in_memory import Memory, item_plan, shards, write_files
from trainshed.core.datasets.plans import SplitRule
from trainshed.core.datasets.records import FORMATS, DataFiles, DatasetKind
from trainshed.datasets.port import DataRefused

ML_USE = "aiplatform.googleapis.com/ml_use"
IMAGE = "image_classification_single_label"
TEXT = "text_classification_single_label"
ALL = SplitRule(fractions=(1.0, 0.0, 0.0))


def uri_of(name: str) -> str:
    return next(uri for uri, form in FORMATS.items() if form.name == name)


def split_of(buckets: Memory, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for part in shards(buckets, split) for line in part.splitlines()]


def import_items(
    form: str, content: str, name: str = "gs://b/in.csv", rule: SplitRule = ALL
) -> dict[str, list[dict[str, Any]]]:
    buckets = Memory({name: content.encode()}, block=5)
    kind = FORMATS[uri_of(form)].kind
    write_files(item_plan(kind, DataFiles((name,), uri_of(form)), rule=rule), buckets)
    return {split: split_of(buckets, split) for split in ("training", "validation", "test")}


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        (
            IMAGE,
            "gs://b/1.jpg,daisy",
            {
                "imageGcsUri": "gs://b/1.jpg",
                "classificationAnnotation": {"displayName": "daisy"},
                "classificationAnnotations": [{"displayName": "daisy"}],
            },
        ),
        (IMAGE, "gs://b/1.jpg", {"imageGcsUri": "gs://b/1.jpg"}),
        (
            "image_classification_multi_label",
            "test,gs://b/1.jpg,a,b",
            {
                "imageGcsUri": "gs://b/1.jpg",
                "classificationAnnotations": [{"displayName": "a"}, {"displayName": "b"}],
                "dataItemResourceLabels": {ML_USE: "test"},
            },
        ),
        (
            "image_bounding_box",
            "gs://b/1.jpg,car,0.1,0.2,,,0.5,0.75,,",
            {
                "imageGcsUri": "gs://b/1.jpg",
                "boundingBoxAnnotations": [
                    {"displayName": "car", "xMin": 0.1, "yMin": 0.2, "xMax": 0.5, "yMax": 0.75}
                ],
            },
        ),
        (
            TEXT,
            'UNASSIGNED,"a text,\nof two lines",spam',
            {
                "textContent": "a text,\nof two lines",
                "classificationAnnotation": {"displayName": "spam"},
                "classificationAnnotations": [{"displayName": "spam"}],
            },
        ),
        (
            TEXT,
            "gs://b/1.txt,spam",
            {
                "textGcsUri": "gs://b/1.txt",
                "textContent": "gs://b/1.txt",
                "classificationAnnotation": {"displayName": "spam"},
                "classificationAnnotations": [{"displayName": "spam"}],
            },
        ),
    ],
)
def test_csv_import_lines_are_converted_to_json_data_items(
    form: str, line: str, expected: dict[str, Any]
) -> None:
    together = [item for split in import_items(form, f"{line}\n").values() for item in split]
    assert together == [expected]


def test_bounding_boxes_of_the_same_image_are_merged_into_one_item() -> None:
    lines = "gs://b/1.jpg,a,0,0,,,1,1,,\ngs://b/1.jpg,b,0,0,1,0,1,1,0,1\ngs://b/2.jpg,c,0,0,,,1,1,,\n"
    first, second = import_items("image_bounding_box", lines)["training"]
    assert [box["displayName"] for box in first["boundingBoxAnnotations"]] == ["a", "b"]
    assert second["imageGcsUri"] == "gs://b/2.jpg"


def test_json_data_items_get_the_labels_of_their_import_request() -> None:
    line = r'{"textContent": "half: \ud83d",  "other": {"displayName": "ä"}}'
    buckets = Memory({"gs://b/in.jsonl": f"{line}\n\n".encode()})
    plain = item_plan(DatasetKind.TEXT, DataFiles(("gs://b/in.jsonl",), uri_of(TEXT)), rule=ALL)
    write_files(plain, buckets)
    assert shards(buckets, "training") == [f"{line}\n".encode()]
    assert shards(buckets, "test") == [b""]
    labelled = DataFiles(("gs://b/in.jsonl",), uri_of(TEXT), (("batch", "1"),))
    other = Memory({"gs://b/in.jsonl": line.encode()})
    write_files(item_plan(DatasetKind.TEXT, labelled, rule=ALL), other)
    (item,) = split_of(other, "training")
    assert item == {**json.loads(line), "dataItemResourceLabels": {"batch": "1"}}


def test_ml_use_of_a_data_item_overrides_the_split_fractions() -> None:
    lines = "".join(
        f"{use},gs://b/{n}.jpg,a\n" for n, use in enumerate(["TRAIN", "VALIDATE", "TEST", "training"])
    )
    items = import_items(IMAGE, lines)
    expected = {"training": 2, "validation": 1, "test": 1}
    assert {split: len(rows) for split, rows in items.items()} == expected


@pytest.mark.parametrize(
    ("form", "name", "content", "words"),
    [
        (IMAGE, "a.csv", "1.jpg,a", "a.csv, row 1 (line 1): '1.jpg' is no"),
        (IMAGE, "a.csv", "gs://b/1,a\ngs://b/1,a,b", "a.csv, row 2 (line 2): the row has 2 labels"),
        ("image_bounding_box", "a.csv", "gs://b/1,a,0,0", "Write LABEL,X_MIN"),
        ("image_bounding_box", "a.csv", "gs://b/1,a,x,0,,,1,1,,", "numbers from 0 to 1"),
        ("image_segmentation", "a.csv", "gs://b/1,a", "as a line of a .jsonl file"),
        (TEXT, "a.jsonl", '{"textContent": "a"}\n{', "a.jsonl, line 2: the line is not valid JSON"),
        (TEXT, "a.jsonl", "[1]", "textContent or textGcsUri"),
        (TEXT, "a.jsonl", "[" * 100_000, "the line is not valid JSON"),
        (TEXT, "a.jsonl", '{"textContent": "a", "dataItemResourceLabels": {"a": 1}}', "values are strings"),
    ],
)  # fmt: skip
def test_error_of_an_invalid_data_item_contains_the_line_number(
    form: str, name: str, content: str, words: str
) -> None:
    with pytest.raises(DataRefused) as refused:
        import_items(form, content, f"gs://b/{name}")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (
            {"textContent": "a", "classificationAnnotations": [{"displayName": "x"}]},
            {"classificationAnnotation": {"displayName": "x"}},
        ),
        (
            {"textContent": "a", "classificationAnnotation": {"displayName": "x"}},
            {"classificationAnnotations": [{"displayName": "x"}]},
        ),
        ({"textGcsUri": "gs://b/1"}, {"textContent": "gs://b/1"}),
        ({"textContent": "a", "classificationAnnotations": "x"}, {}),
    ],
)
def test_json_data_items_contain_a_label_as_single_value_and_as_list(
    line: dict[str, Any], more: dict[str, Any]
) -> None:
    """Official notebooks read the list of labels. The public schema for a single label contains no list."""
    together = [
        item for split in import_items(TEXT, json.dumps(line), name="a.jsonl").values() for item in split
    ]
    assert together == [{**line, **more}]


def test_json_segmentation_items_are_imported_unchanged() -> None:
    item = {
        "imageGcsUri": "gs://b/1.jpg",
        "segmentationAnnotation": {
            "maskGcsUri": "gs://b/1.png",
            "annotationSpecColors": [{"displayName": "road", "color": {"red": 1.0}}],
        },
        "dataItemResourceLabels": {ML_USE: "test"},
    }
    splits = import_items("image_segmentation", json.dumps(item), "gs://b/in.jsonl")
    assert splits == {"training": [], "validation": [], "test": [item]}
    bare = import_items("image_segmentation", "gs://b/2.jpg")
    assert bare["training"] == [{"imageGcsUri": "gs://b/2.jpg"}]
