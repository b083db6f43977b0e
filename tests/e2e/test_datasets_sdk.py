"""Datasets by the Vertex SDK, unmodified, over gRPC with TLS: created, imported into, used for training
(facts/datasets).
"""

import json
from typing import Any

import pytest

from tests.e2e.running import SKLEARN, Service, json_of, seen_by_sdk
from tests.isolation import needs_view

# Counts the rows of each split like public programs, and lists the files.
_SCRIPT = """
import csv, glob, json, os
found = {"format": os.environ["AIP_DATA_FORMAT"]}
for split in ("TRAINING", "VALIDATION", "TEST"):
    uri = os.environ[f"AIP_{split}_DATA_URI"]
    rows = []
    for path in sorted(glob.glob(uri.replace("gs://", "/gcs/"))):
        with open(path, newline="") as file:
            rows += list(csv.DictReader(file))
    found[split.lower()] = [row["id"] for row in rows]
    assert all(row["text"] == f"row {row['id']},\\nof two lines" for row in rows), rows[:3]
print("FOUND " + json.dumps(found))
"""
_PROGRAM = """
scratch, image, script = arguments
table = aiplatform.TabularDataset.create(
    "table", gcs_source=["gs://trainshed/data/a.csv", "gs://trainshed/data/b.csv"]
)
table.update(display_name="rows", labels={"by": "grpc"})
(found,) = aiplatform.TabularDataset.list(filter="labels.by=grpc")
series = aiplatform.TimeSeriesDataset.create("series", gcs_source="gs://trainshed/data/a.csv")
photos = aiplatform.ImageDataset.create(
    "photos",
    gcs_source="gs://trainshed/data/photos.csv",
    import_schema_uri=aiplatform.schema.dataset.ioformat.image.single_label_classification,
)
texts = aiplatform.TextDataset.create("texts")
texts.import_data(
    gcs_source="gs://trainshed/data/texts.jsonl",
    import_schema_uri=aiplatform.schema.dataset.ioformat.text.single_label_classification,
)
texts.delete()
model = aiplatform.Model.upload(
    display_name="kept",
    artifact_uri="gs://trainshed/weights",
    serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
)
seen = {
    "name": found.display_name,
    "schema": found.metadata_schema_uri,
    "same": found.resource_name == table.resource_name,
    "exported": list(photos.export_data("gs://trainshed/exported/")),
    "models": [
        model.export_model("custom-trained", artifact_destination="gs://trainshed/out", sync=sync)
        for sync in (True, False)
    ],
    "formats": {
        name: [kind.name for kind in kinds]
        for name, kinds in model.supported_export_formats.items()
    },
    "columns": sorted(series.column_names),
    "kinds": [type(each).__name__ for each in (series, photos, texts)],
}
path = pathlib.Path(scratch, "train.py")
path.write_text(script)
job = aiplatform.CustomTrainingJob(
    display_name="train", script_path=str(path), container_uri=image
)
job.run(
    dataset=table,
    base_output_dir="gs://trainshed/out",
    machine_type="n1-standard-4",
    training_fraction_split=0.5,
    validation_fraction_split=0.25,
    test_fraction_split=0.25,
)
seen["job"] = job.gca_resource.training_task_metadata["backingCustomJob"].rsplit("/", 1)[1]
print("SEEN", json.dumps(seen))
"""


@pytest.fixture(scope="module")
def program_output(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the program's output."""

    def rows(numbers: range) -> str:
        return "".join(f'{n},"row {n},\nof two lines"\n' for n in numbers)

    header = "id,text\n"
    service.put("trainshed", "data/a.csv", (header + rows(range(600))).encode())
    service.put("trainshed", "data/b.csv", (header + rows(range(600, 1000))).encode())
    service.put("trainshed", "data/photos.csv", b"gs://trainshed/data/1.jpg,daisy\n")
    service.put("trainshed", "weights/model.pt", b"weights")
    service.put("trainshed", "weights/variables/0", b"more")
    line = {"textContent": "hi", "classificationAnnotation": {"displayName": "greeting"}}
    service.put("trainshed", "data/texts.jsonl", json.dumps(line).encode())
    scratch = tmp_path_factory.mktemp("datasets")
    return seen_by_sdk(service, _PROGRAM, str(scratch), SKLEARN, _SCRIPT)


def test_datasets_of_each_kind_are_created_listed_and_updated(program_output: dict[str, Any]) -> None:
    assert program_output["name"] == "rows"
    assert program_output["schema"].endswith("/tabular_1.0.0.yaml")
    assert program_output["same"]
    assert program_output["columns"] == ["id", "text"]
    assert program_output["kinds"] == ["TimeSeriesDataset", "ImageDataset", "TextDataset"]


def test_datasets_and_models_are_exported(service: Service, program_output: dict[str, Any]) -> None:
    """facts/models#export"""
    (exported,) = program_output["exported"]
    buckets = service.data / "buckets"
    item = json.loads((buckets / exported.removeprefix("gs://")).read_text())
    assert item == {
        "imageGcsUri": "gs://trainshed/data/1.jpg",
        "classificationAnnotation": {"displayName": "daisy"},
        "classificationAnnotations": [{"displayName": "daisy"}],
    }
    assert program_output["formats"] == {"custom-trained": ["ARTIFACT"]}
    first, second = (output["artifactOutputUri"] for output in program_output["models"])
    assert first != second
    for output in (first, second):
        assert output.startswith("gs://trainshed/out/model-export-kept-")
        directory = buckets / output.removeprefix("gs://")
        assert (directory / "model.pt").read_bytes() == b"weights"
        assert (directory / "variables" / "0").read_bytes() == b"more"


@needs_view
def test_program_reads_the_splits_of_its_dataset(service: Service, program_output: dict[str, Any]) -> None:
    rows = json_of(service.lines(program_output["job"]), "FOUND")
    assert rows.pop("format") == "csv"
    assert sorted(int(row) for some in rows.values() for row in some) == list(range(1000))
    assert {split: len(some) for split, some in rows.items()} == pytest.approx(
        {"training": 500, "validation": 250, "test": 250}, rel=0.2
    )
