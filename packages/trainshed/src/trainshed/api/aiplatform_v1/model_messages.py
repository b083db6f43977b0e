"""Checks what requests about models name and ask for, and converts model versions to `aiplatform` v1 messages
(facts/resources#vertex, facts/resources#pipelines, facts/limits#labels)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.timestamps import set_micros
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import ModelName
from trainshed.core.pipelines import ModelVersion
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import (
    alias_fault,
    bucket_path_fault,
    model_id_fault,
    read_display_name,
    read_labels,
)
from trainshed.wire import json as wire_json

DEFAULT: Final = "default"
"""The alias that exactly one version of each model has."""
OF_MODEL: Final = ("display_name", "description", "labels")
"""What an update of a model can change."""
OF_VERSION: Final = ("version_description", "labels")
"""What an update of one version can change."""


def read_version_name(text: str) -> tuple[ModelName, str]:
    """Return a model's name and the version or alias behind its `@`, which is required. Raises
    InvalidRequest."""
    name, version = ModelName.parse(text)
    if not version:
        wrong = f"{text!r} names no version; put @VERSION or @ALIAS behind it."
        raise InvalidRequest((Violation("name", wrong),))
    return name, version


def check_upload(public: Mapping[str, Any], model_id: str, parent_model: str) -> None:
    """Check a Model to register, in public JSON. Raises InvalidRequest with all faults."""
    faults = Faults()
    model = Section(public, "model", faults)
    read_display_name(model)
    read_labels(model)
    artifacts = model.text("artifactUri")
    if artifacts and (fault := bucket_path_fault(artifacts)):
        model.fault("artifactUri", fault)
    if model.has("containerSpec") and not model.section("containerSpec").text("imageUri"):
        model.section("containerSpec").fault("imageUri", "The serving image must be set.")
    _check_aliases(model.texts("versionAliases"), model.at("versionAliases"), faults)
    if model_id and (fault := model_id_fault(model_id)):
        faults.add("model_id", fault)
    if model_id and parent_model and parent_model.rpartition("/")[2] != model_id:
        faults.add("model_id", "A new version has the id of its parent_model; leave model_id out.")
    faults.refuse()


def check_copy(model_id: str, further: Iterable[Violation]) -> None:
    """Check the id of a copy. Raises InvalidRequest with all faults, including those in `further`."""
    faults = Faults()
    for violation in further:
        faults.add(violation.field, violation.description)
    if model_id and (fault := model_id_fault(model_id)):
        faults.add("model_id", fault)
    faults.refuse()


def check_merge(aliases: Iterable[str]) -> None:
    """Check aliases to give and, with a leading `-`, to remove. Raises InvalidRequest with all faults."""
    changes = tuple(aliases)
    faults = Faults()
    if not changes:
        faults.add("version_aliases", "Name an alias to give, or one to take away as -ALIAS.")
    _check_aliases((alias.removeprefix("-") for alias in changes), "version_aliases", faults)
    faults.refuse()


def check_update(paths: Iterable[str], model: Any, version: str) -> None:
    """Check an update mask and the fields that it names. `version`: "" = the model itself is updated. Raises
    InvalidRequest with all faults."""
    fields = tuple(paths)
    allowed = OF_VERSION if version else OF_MODEL
    faults = Faults()
    if not fields:
        faults.add("update_mask", f"Name what is to be updated: {', '.join(allowed)}.")
    if wrong := [path for path in fields if path not in allowed]:
        whose = "one version of a model" if version else "a model"
        faults.add(
            "update_mask",
            f"Of {whose} only {', '.join(allowed)} can be updated, not {', '.join(wrong)}.",
        )
    section = Section(
        {"displayName": model.display_name, "labels": dict(model.labels)}, "model", faults
    )
    if "display_name" in fields:
        read_display_name(section)
    if "labels" in fields:
        read_labels(section)
    faults.refuse()


def _check_aliases(aliases: Iterable[str], path: str, faults: Faults) -> None:
    for index, alias in enumerate(aliases):
        if fault := alias_fault(alias):
            faults.add(f"{path}[{index}]", fault)


def model(record: ModelVersion, *, versioned: bool = False) -> Message:
    """Return the Model message of one version. `versioned`: its name includes the version, as in lists of
    versions."""
    view: Any = wire_json.from_public(f"{V1}.Model", json.loads(record.public_json))
    view.name = f"{record.name}@{record.version}" if versioned else str(record.name)
    view.version_id = str(record.version)
    view.display_name = record.display_name
    view.artifact_uri = record.artifact_uri
    view.training_pipeline = record.pipeline
    del view.version_aliases[:]
    view.version_aliases.extend(record.aliases)
    view.model_source_info.source_type = "CUSTOM"
    view.model_source_info.copy = bool(view.original_model_info.model)
    del view.supported_export_formats[:]
    for created in (view.create_time, view.version_create_time):
        set_micros(created, record.created)
    for updated in (view.update_time, view.version_update_time):
        set_micros(updated, record.updated)
    view.labels.clear()
    view.labels.update(dict(record.labels))
    return view
