"""Model versions as `aiplatform` v1 messages (facts/resources#pipelines)."""

import json
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.timestamps import set_micros
from trainshed.core.pipelines.records import ModelVersion
from trainshed.wire import json as wire_json
from trainshed.wire import pool

MODEL: Final = "google.cloud.aiplatform.v1.Model"
_SOURCE: Final = "google.cloud.aiplatform.v1.ModelSourceInfo"


def model(record: ModelVersion, *, versioned: bool = False) -> Message:
    """The Model message of one version. `versioned`: its name says which one, as lists of versions have
    it."""
    view: Any = wire_json.from_public(MODEL, json.loads(record.public_json))
    view.name = f"{record.name}@{record.version}" if versioned else str(record.name)
    view.version_id = str(record.version)
    view.display_name = record.display_name
    view.artifact_uri = record.artifact_uri
    view.training_pipeline = record.pipeline
    del view.version_aliases[:]
    view.version_aliases.extend(record.aliases)
    source = pool.message_descriptor(_SOURCE).fields_by_name["source_type"].enum_type
    assert source is not None
    view.model_source_info.source_type = source.values_by_name["CUSTOM"].number
    for created in (view.create_time, view.version_create_time):
        set_micros(created, record.created)
    for updated in (view.update_time, view.version_update_time):
        set_micros(updated, record.updated)
    view.labels.clear()
    view.labels.update(dict(record.labels))
    return view
