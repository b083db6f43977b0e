"""Converts `inputDataConfig` of a pipeline, or the configuration of an export, to a `SplitPlan` or a list of
all its errors (facts/datasets#splits)."""

import re
from typing import Final

from msgspec.structs import replace

from trainshed.core.datasets.plans import (
    SPLITS,
    SplitMethod,
    SplitPlan,
    SplitRule,
    complete_fractions,
    directory_name,
)
from trainshed.core.datasets.records import FORMATS, Dataset, annotation_of, annotation_uri, annotations_of
from trainshed.core.requests import Section
from trainshed.core.specs import syntax
from trainshed.core.units import Nanos

_DATASET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_METHODS: Final = ("fractionSplit", "predefinedSplit")
_IN_A_COLUMN: Final = (
    "This service does not support it. Write training, validation or test into a "
    "column of each row and set predefined_split to the column, or omit this field."
)
_UNSERVED_SPLITS: Final = {
    "timestampSplit": _IN_A_COLUMN,
    "stratifiedSplit": _IN_A_COLUMN,
    "filterSplit": "This service does not support it. Write the split of each item into its "
    "import file as its ML use, which overrides fractions, and omit this field.",
}
"""Errors for splits that the service does not support, by field, with the alternative to each."""
_NOT_APPLIED: Final = "This service does not apply it. Omit it, and select items by annotation_schema_uri."
_UNSERVED: Final = {
    "annotationsFilter": _NOT_APPLIED,
    "savedQueryId": _NOT_APPLIED,
    "persistMlUseAssignment": "This service does not write a split back to the dataset. Omit it, and find "
    "the split in the files below the destination.",
}


def read_data(pipeline: Section, dataset: Dataset | None, at: Nanos) -> SplitPlan | None:
    """Parse `inputDataConfig`.

    Return None if it is omitted, if the dataset is unknown or has no files with the requested annotations, or
    if the destination is wrong. `dataset`: the dataset of the request, or None if unknown. `at`: creation
    time of the pipeline (ns). Errors are added to the section's faults. Do not use the returned plan if
    errors were added.
    """
    if not pipeline.has("inputDataConfig"):
        return None
    config = pipeline.section("inputDataConfig")
    config.check("datasetId", dataset_id_fault(config.text("datasetId")))
    _refuse_unserved(config)
    if config.has("bigqueryDestination"):
        config.fault(
            "bigqueryDestination",
            "This service does not write to BigQuery. Set gcs_destination, where the program finds files.",
        )
    return _read_plan(config, dataset, at)


def read_export(config: Section, dataset: Dataset, at: Nanos) -> SplitPlan | None:
    """Parse `exportConfig` of a dataset. Without a split, all rows form one set. The parameters and the
    result are those of `read_data`."""
    _refuse_unserved(config)
    if config.text("exportUse") == "CUSTOM_CODE_TRAINING" and not config.has("fractionSplit"):
        config.fault("fractionSplit", "It must be set for the export use CUSTOM_CODE_TRAINING.")
    plan = _read_plan(config, dataset, at)
    if plan is None or any(map(config.has, _METHODS)):
        return plan
    return replace(plan, is_whole=True)


def _refuse_unserved(config: Section) -> None:
    for name, instead in _UNSERVED_SPLITS.items():
        if config.has(name):
            config.fault(name, instead)
    syntax.refuse(config, _UNSERVED)


def _read_plan(config: Section, dataset: Dataset | None, at: Nanos) -> SplitPlan | None:
    if not config.has("gcsDestination") and not config.has("bigqueryDestination"):
        config.fault(
            "gcsDestination", "The destination of the files must be set, for example gs://BUCKET/PATH."
        )
    rule = _read_rule(config, dataset)
    annotation = _read_annotation(config, dataset)
    destination = config.section("gcsDestination")
    uri = destination.text("outputUriPrefix")
    fault = syntax.bucket_path_fault(uri) if config.has("gcsDestination") else ""
    destination.check("outputUriPrefix", fault)
    if dataset is None:
        return None
    files = tuple(
        files
        for files in dataset.files
        if not annotation or FORMATS[files.schema_uri].annotation == annotation
    )
    if not files:
        wanted = f" with annotations of {annotation}" if annotation and dataset.files else ""
        field = "datasetId" if config.has("datasetId") else ""
        config.fault(field, f"{dataset.name} has no files{wanted}. Import some, or use another dataset.")
    if fault or not files:
        return None
    kind = annotation or ("tables" if dataset.kind.is_table else dataset.kind.value)
    name = directory_name(dataset.name.dataset_id, kind, at)
    return SplitPlan(dataset.name, dataset.kind, files, rule, f"{uri.rstrip('/')}/{name}")


def dataset_id_fault(dataset: str) -> str | None:
    """Return the error in a dataset's id, or None if it is valid."""
    if _DATASET_ID.fullmatch(dataset):
        return None
    return f"{dataset!r} is not a dataset id; it has 1 to 128 letters, digits, dashes and underscores."


def _read_annotation(config: Section, dataset: Dataset | None) -> str:
    """Return the name of the annotation schema, or "" if the request has none or it does not match the
    dataset."""
    uri = config.text("annotationSchemaUri")
    if not uri:
        return ""
    name = annotation_of(uri)
    known = annotations_of(dataset.kind) if dataset is not None else (name,)
    if dataset is not None and dataset.kind.is_table:
        config.fault(
            "annotationSchemaUri",
            f"{dataset.name} is a {dataset.kind} dataset, which has no annotations. Omit the field.",
        )
        return ""
    if not name or name not in known:
        choices = ", ".join(map(annotation_uri, filter(None, known)))
        among = f"; choose one of {choices}" if choices else ""
        of = f" of {dataset.kind} datasets" if dataset is not None else ""
        config.fault("annotationSchemaUri", f"{uri!r} is not an annotation schema{of}{among}.")
        return ""
    return name


def _read_rule(config: Section, dataset: Dataset | None) -> SplitRule:
    methods = [name for name in _METHODS if config.has(name)]
    if len(methods) > 1:
        config.fault(
            methods[1], f"Only one split can be set, and {config.path_of(methods[0])} is set as well."
        )
    if not methods:
        return SplitRule()
    (name, *_) = methods
    split = config.section(name)
    if name == "predefinedSplit":
        if dataset is not None and not dataset.kind.is_table:
            config.fault(
                name,
                f"It requires a column, and {dataset.name} is of kind {dataset.kind}. Set fraction_split.",
            )
        key = split.text("key")
        if not key:
            split.fault("key", "The name of the column must be set.")
        return SplitRule(SplitMethod.PREDEFINED, key=key)
    return SplitRule(SplitMethod.FRACTION, _read_fractions(split))


def _read_fractions(split: Section) -> tuple[float, float, float]:
    fractions = {f"{split_name}Fraction": split.number(f"{split_name}Fraction") for split_name in SPLITS}
    for name, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            split.fault(name, f"The fraction must be from 0 to 1, not {fraction:g}.")
    # Permit a small excess: with floats, a sum such as 0.7 + 0.2 + 0.1 may be slightly larger than 1.
    if sum(fractions.values()) > 1 + 1e-9:
        split.fault("", f"The fractions add up to {sum(fractions.values()):g}; at most 1 is allowed.")
        return SplitRule().fractions
    return complete_fractions(tuple(fractions.values()))
