"""The inputDataConfig of a training pipeline: what its programs are told of their data
(facts/program#variables).

There is no dataset service: the files are expected where the public service would have put its export,
without a time in the directory's name, so that they can be put there beforehand (docs/choices.md).
"""

import re
from dataclasses import dataclass

from trainshed.core.requests import Section
from trainshed.core.specs import syntax

_DATASET_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TABLE = re.compile(r"bq://[^./\s]+(\.[^./\s]+)?")
_SPLITS = ("fractionSplit", "filterSplit", "predefinedSplit", "timestampSplit", "stratifiedSplit")
_OF_TABLES = ("predefinedSplit", "timestampSplit", "stratifiedSplit")
_OF_ITEMS = ("filterSplit", "annotationsFilter", "annotationSchemaUri", "savedQueryId")
_SETS = ("training", "validation", "test")


@dataclass(frozen=True, slots=True)
class Data:
    """Variables for every program, and what is said about them on the job's timeline."""

    env: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def read_data(pipeline: Section) -> Data:
    """`inputDataConfig`, nothing if it is left out. What is wrong is reported to the section's faults."""
    if not pipeline.has("inputDataConfig"):
        return Data()
    config = pipeline.section("inputDataConfig")
    dataset = config.text("datasetId")
    if not _DATASET_ID.fullmatch(dataset):
        config.fault(
            "datasetId",
            f"{dataset!r} is not a dataset id; it has 1 to 128 letters, digits, dashes and underscores.",
        )
    _check_split(config)
    schema = config.text("annotationSchemaUri")
    if schema and (fault := syntax.bucket_path_fault(schema, needs_object=True)):
        config.fault("annotationSchemaUri", fault)
    if schema and config.is_set("savedQueryId"):
        config.fault(
            "savedQueryId", "Only one of annotation_schema_uri and saved_query_id can be set."
        )
    tables, files = config.has("bigqueryDestination"), config.has("gcsDestination")
    if tables == files:
        said = "both are" if tables else "neither is"
        config.fault(
            "gcsDestination",
            f"Exactly one of gcs_destination and bigquery_destination must be set; {said}.",
        )
    if tables:
        return _tables(config.section("bigqueryDestination"), dataset)
    return _files(config, dataset)


def _files(config: Section, dataset: str) -> Data:
    destination = config.section("gcsDestination")
    uri = destination.text("outputUriPrefix")
    if config.has("gcsDestination") and (fault := syntax.bucket_path_fault(uri)):
        destination.fault("outputUriPrefix", fault)
    kind = "jsonl" if any(map(config.is_set, _OF_ITEMS)) else "csv"
    directory = f"{uri.removesuffix('/')}/dataset-{dataset}"
    return _data(
        kind,
        tuple(f"{directory}/{name}-*.{kind}" for name in _SETS),
        f"Datasets are not served here: the program is told to read {directory}/training-*.{kind}, "
        f"validation-*.{kind} and test-*.{kind}, and finds what was put there before; splits, filters and "
        "annotations are not applied.",
    )


def _tables(destination: Section, dataset: str) -> Data:
    uri = destination.text("outputUri")
    if not _TABLE.fullmatch(uri):
        destination.fault(
            "outputUri", f"{uri!r} must look like bq://PROJECT or bq://PROJECT.DATASET."
        )
    place = uri if "." in uri else f"{uri}.dataset_{dataset.replace('-', '_')}"
    return _data(
        "bigquery",
        tuple(f"{place}.{name}" for name in _SETS),
        f"Datasets are not served here: the program is told to read the tables training, validation and "
        f"test of {place}, which this service neither makes nor can be asked for.",
    )


def _data(kind: str, places: tuple[str, ...], warning: str) -> Data:
    names = (f"AIP_{name.upper()}_DATA_URI" for name in _SETS)
    return Data((("AIP_DATA_FORMAT", kind), *zip(names, places, strict=True)), (warning,))


def _check_split(config: Section) -> None:
    given = [name for name in _SPLITS if config.has(name)]
    if len(given) > 1:
        config.fault(
            given[1], f"Only one split can be set, and {config.at(given[0])} is set as well."
        )
    for name in given:
        split = config.section(name)
        if name in _OF_TABLES and not split.text("key"):
            split.fault("key", "The name of the column must be set.")
        if name == "filterSplit":
            for filters in (f"{part}Filter" for part in _SETS):
                if not split.text(filters):
                    split.fault(filters, 'The filter must be set; "-" stands for no data at all.')
        elif name != "predefinedSplit":
            _check_fractions(split)


def _check_fractions(split: Section) -> None:
    fractions = {f"{name}Fraction": split.number(f"{name}Fraction") for name in _SETS}
    for name, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            split.fault(name, f"The fraction must be from 0 to 1, not {fraction:g}.")
    # A sum such as 0.7 + 0.2 + 0.1 may come out a little above 1.
    if sum(fractions.values()) > 1 + 1e-9:
        split.fault(
            "", f"The fractions add up to {sum(fractions.values()):g}; at most 1 is allowed."
        )
