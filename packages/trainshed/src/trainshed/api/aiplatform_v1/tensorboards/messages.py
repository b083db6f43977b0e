"""Converts tensorboards, experiments, runs and time series to messages, and checks what requests may set
(facts/experiments#tensorboards)."""

import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.calls.timestamps import set_micros
from trainshed.api.calls.update_masks import read_update_mask
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import MAX_DISPLAY_NAME, read_labels
from trainshed.core.tensorboards.records import BoardName, BoardResource, Level, ValueType
from trainshed.core.units import Nanos
from trainshed.wire import json as wire_json
from trainshed.wire import pool

V1: Final = "google.cloud.aiplatform.v1"
MAX_PLUGIN_DATA: Final = 65_000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


class Kind(Struct, frozen=True):
    """The names of a level in messages, and what an update of it can change."""

    #: Name of its message; the field of requests is the same in snake case.
    message: str
    field: str
    #: Plural, as in names of methods, and as the field of an answer.
    messages: str
    fields: str
    updatable: tuple[str, ...]


KINDS: Final = {
    Level.TENSORBOARD: Kind(
        "Tensorboard",
        "tensorboard",
        "Tensorboards",
        "tensorboards",
        ("display_name", "description", "labels", "is_default"),
    ),
    Level.EXPERIMENT: Kind(
        "TensorboardExperiment",
        "tensorboard_experiment",
        "TensorboardExperiments",
        "tensorboard_experiments",
        ("display_name", "description", "labels"),
    ),
    Level.RUN: Kind(
        "TensorboardRun",
        "tensorboard_run",
        "TensorboardRuns",
        "tensorboard_runs",
        ("display_name", "description", "labels"),
    ),
    Level.SERIES: Kind(
        "TensorboardTimeSeries",
        "tensorboard_time_series",
        "TensorboardTimeSeries",
        "tensorboard_time_series",
        ("display_name", "description", "plugin_name", "plugin_data"),
    ),
}


def view(record: BoardResource, bucket: str = "") -> Message:
    """Return a resource as its message. `bucket`: where clients are to put blobs, "" = nowhere."""
    kind = KINDS[record.name.level]
    message: Any = pool.message_class(f"{V1}.{kind.message}")(
        name=str(record.name),
        display_name=record.display_name,
        description=record.description,
        etag=str(record.updated // 10**6),
    )
    set_micros(message.create_time, record.created)
    set_micros(message.update_time, record.updated)
    match record.name.level:
        case Level.TENSORBOARD:
            message.is_default = record.is_default
            if bucket:
                message.blob_storage_path_prefix = blob_folder(record.name, bucket)
        case Level.EXPERIMENT:
            message.source = record.source
        case Level.RUN:
            pass
        case Level.SERIES:
            message.value_type = value_number(record.value_type)
            message.plugin_name = record.plugin_name
            message.plugin_data = record.plugin_data
            return message  # It has no labels.
    message.labels.update(dict(record.labels))
    return message


def blob_folder(name: BoardName, bucket: str) -> str:
    """Return `BUCKET/FOLDER`, below which clients make a folder for each tensorboard, as the uploader
    does."""
    return f"{bucket}/tensorboards/{name.project_id}"


def value_number(value_type: ValueType | None) -> int:
    """Return the number of a value type in messages."""
    return 0 if value_type is None else 1 + list(ValueType).index(value_type)


def read_new(message: Any, name: BoardName, uid: int, now: Nanos) -> BoardResource:
    """Return the record of a resource to create. Raises InvalidRequest with all faults."""
    faults = Faults()
    level = name.level
    _check(message, level, faults)
    if level is not Level.TENSORBOARD and not _ID.fullmatch(name.own_id):
        text = (
            f"{name.own_id!r} is not an id; it has at most 128 lowercase letters, digits and dashes, and "
            "begins with a letter or digit."
        )
        faults.add(f"{KINDS[level].field}_id", text)
    value_type = None
    if level is Level.SERIES:
        types = dict(enumerate(ValueType, 1))
        value_type = types.get(message.value_type)
        if value_type is None:
            text = f"It must be one of {', '.join(ValueType)}."
            faults.add(f"{KINDS[level].field}.value_type", text)
    faults.refuse()
    return BoardResource(
        name,
        uid,
        now,
        now,
        display_name=message.display_name,
        description=message.description,
        labels=_labels(message, level),
        is_default=level is Level.TENSORBOARD and message.is_default,
        source=message.source if level is Level.EXPERIMENT else "",
        value_type=value_type,
        plugin_name=message.plugin_name if level is Level.SERIES else "",
        plugin_data=message.plugin_data if level is Level.SERIES else b"",
    )


def read_mask(paths: Iterable[str], level: Level) -> tuple[str, ...]:
    """Return the fields that an update replaces; all that can be updated for no mask or `*`. Raises
    InvalidRequest."""
    allowed = KINDS[level].updatable
    return read_update_mask(paths, allowed) or allowed


def updated(
    record: BoardResource, message: Any, fields: tuple[str, ...], now: Nanos
) -> BoardResource:
    """Return the record with the fields of the message. Raises InvalidRequest with all faults."""
    faults = Faults()
    level = record.name.level
    _check(message, level, faults)
    faults.refuse()
    for field in fields:
        value = _labels(message, level) if field == "labels" else getattr(message, field)
        record = replace(record, **{field: value})
    return replace(record, updated=now)


def _check(message: Any, level: Level, faults: Faults) -> None:
    section = Section(wire_json.to_public(message), KINDS[level].field, faults)
    if len(message.display_name) > MAX_DISPLAY_NAME:
        section.fault("displayName", f"At most {MAX_DISPLAY_NAME} characters are allowed.")
    if level is Level.SERIES:
        if not message.display_name:
            section.fault("displayName", "The display name must be set.")
        if len(message.plugin_data) > MAX_PLUGIN_DATA:
            section.fault("pluginData", f"At most {MAX_PLUGIN_DATA} bytes are allowed.")
    else:
        read_labels(section)


def _labels(message: Any, level: Level) -> tuple[tuple[str, str], ...]:
    return () if level is Level.SERIES else tuple(sorted(message.labels.items()))
