"""Defines the supported properties of buckets and objects. Pure.

Requests with other properties are rejected, and the error contains their names. Neutral values (`false`, `0`,
`"DEFAULT"`, an empty list) are accepted for every property.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from trainshed.buckets.errors import InvalidRequest, NotSupported, require_object

_FIXED: Final = (
    *("id", "kind", "name", "selfLink", "etag", "generation", "metageneration"),
    *("projectNumber", "timeCreated", "updated", "location", "locationType", "owner"),
    *("satisfiesPZI", "satisfiesPZS"),
)
"""Properties of a bucket that clients cannot change. `location` can be set only when the bucket is created.
"""
_LABELS, _VERSIONING = "labels", "versioning"
_HOLD, _CLASS, _IAM = "defaultEventBasedHold", "storageClass", "iamConfiguration"
_PUBLIC: Final = "publicAccessPrevention"
_STORED: Final = (_LABELS, _VERSIONING, _HOLD, _CLASS, _IAM)
_ALWAYS: Final = frozenset([_PUBLIC, "uniformBucketLevelAccess", "bucketPolicyOnly"])
"""Accepted parts of `iamConfiguration`. `uniformBucketLevelAccess` and `bucketPolicyOnly` change nothing,
because access is always uniform."""
_NEUTRAL: Final = (None, False, 0, "", "0", "DEFAULT", "Disabled", "NotRestricted")
HEADERS: Final = {
    "contentType": "Content-Type",
    "contentEncoding": "Content-Encoding",
    "contentDisposition": "Content-Disposition",
    "contentLanguage": "Content-Language",
    "cacheControl": "Cache-Control",
}
"""Maps properties of an object to the response headers that contain them."""
_UNSUPPORTED_PROPERTIES: Final = (
    *("retention", "customerEncryption", "kmsKeyName", "acl", "contexts"),
    "deleteSourceObjects",  # A field in the body of a compose request.
)
_UNSUPPORTED_PARAMETERS: Final = (*("kmsKeyName", "destinationKmsKeyName", "enableObjectRetention"), "filter")
_ACLS: Final = (*("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl"), "x-goog-acl")
"""Parameters, and the header of the XML API, that select a predefined access control list."""
_CLOSED_ACLS: Final = frozenset(
    ["", "private", "projectprivate", "bucketownerread", "bucketownerfullcontrol"]
)
"""Predefined access control lists that grant no additional rights, because members of the bucket's project
already have these rights."""
_UNSUPPORTED_HEADERS: Final = (
    "x-goog-encryption-",
    *("x-goog-copy-source-encryption-", "x-goog-copy-source-if-"),
    "x-goog-object-lock-",
)
TEMPORARY_HOLD: Final = "temporaryHold"
EVENT_BASED_HOLD: Final = "eventBasedHold"
_HOLDS: Final = (TEMPORARY_HOLD, EVENT_BASED_HOLD)
"""An object with one of these holds can be neither deleted nor replaced."""

_CLASSES: Final = (
    *("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
    *("MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY"),
)

Settings = dict[str, Any]


def merge_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return a bucket's settings after a PATCH: `null` removes a setting, and labels are merged by key.
    Raises NotSupported for unsupported properties, InvalidRequest for malformed ones."""
    unsupported = [
        name
        for name in changes
        if name not in _FIXED and name not in _STORED and _is_requested(changes[name])
    ]
    access = require_object(changes.get(_IAM), _IAM)
    unsupported += [
        f"{_IAM}.{name}" for name in access if name not in _ALWAYS and _is_requested(access[name])
    ]
    reject_unsupported(unsupported, "bucket")
    result = dict(settings)
    for name in (_VERSIONING, _HOLD, _CLASS):
        if name in changes:
            result[name] = changes[name]
    if _LABELS in changes:
        before: Settings = result.get(_LABELS, {}) if changes[_LABELS] is not None else {}
        labels: Settings = {**before, **require_object(changes[_LABELS], _LABELS)}
        result[_LABELS] = {key: text for key, text in labels.items() if text is not None}
    if _PUBLIC in access:
        result[_IAM] = {_PUBLIC: access[_PUBLIC]}
    _check(result)
    return {name: value for name, value in result.items() if value not in (None, {}, "")}


def _check(settings: Settings) -> None:
    enabled = require_object(settings.get(_VERSIONING), _VERSIONING).get("enabled")
    for name, value in (("versioning.enabled", enabled), (_HOLD, settings.get(_HOLD))):
        if not isinstance(value, bool | None):
            raise InvalidRequest(f"Invalid value {value!r} for '{name}'. Send true or false.")
    if wrong := [name for name, text in settings.get(_LABELS, {}).items() if type(text) is not str]:
        raise InvalidRequest(
            f"The values of these labels are not strings: {', '.join(wrong)}. Send JSON strings."
        )
    if settings.get(_CLASS):
        settings[_CLASS] = check_storage_class(settings[_CLASS])
    prevention = _nested_value(settings, _IAM, _PUBLIC)
    if prevention not in (None, "enforced", "inherited", "unspecified"):
        raise InvalidRequest(
            f"Invalid value {prevention!r} for '{_IAM}.{_PUBLIC}'. Send 'enforced' or 'inherited'."
        )


def check_storage_class(value: Any) -> str:
    """Return a storage class in its public form. Raises InvalidRequest for an unknown class."""
    if (name := str(value).upper()) not in _CLASSES:
        raise InvalidRequest(
            f"Invalid value {name[:100]!r} for '{_CLASS}'. Send one of {', '.join(_CLASSES)}."
        )
    return name


def keeps_generations(settings: Mapping[str, Any]) -> bool:
    """Whether replaced and deleted objects in a bucket become noncurrent generations."""
    return _nested_value(settings, _VERSIONING, "enabled") is True


def holds_by_default(settings: Mapping[str, Any]) -> bool:
    return settings.get(_HOLD) is True


def protections(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that protect objects from deletion. Neither a directory nor a remote store can
    enforce them."""
    kept = {_VERSIONING: keeps_generations(settings), _HOLD: holds_by_default(settings)}
    return [name for name, is_on in kept.items() if is_on]


def prevents_public_access(settings: Mapping[str, Any]) -> bool:
    """Whether grants to the public in a bucket's policy are ignored."""
    return _nested_value(settings, _IAM, _PUBLIC) == "enforced"


def storage_class(settings: Mapping[str, Any]) -> str:
    """Return the default class of new objects."""
    return settings.get(_CLASS) or "STANDARD"


def public_settings(settings: Mapping[str, Any]) -> Settings:
    prevention = "enforced" if prevents_public_access(settings) else "inherited"
    return {
        **settings,
        _CLASS: storage_class(settings),
        _IAM: {"uniformBucketLevelAccess": {"enabled": True}, _PUBLIC: prevention},
        # Report that deleted objects are not kept. By default, the public API keeps them for a week.
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    }


def holds_of(resource: Mapping[str, Any], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the holds of an object after an update with a client's resource. Raises InvalidRequest."""
    held: list[str] = []
    for name in _HOLDS:
        value = resource.get(name, name in before)
        if not isinstance(value, bool | None):
            raise InvalidRequest(f"Invalid value {value!r} for '{name}'. Send true or false.")
        if value:
            held.append(name)
    return tuple(held)


def check_object(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's resource unchanged. Raises NotSupported if it contains unsupported properties."""
    reject_unsupported(
        [name for name in _UNSUPPORTED_PROPERTIES if _is_requested(resource.get(name))], "object"
    )
    return resource


def check_request(headers: Mapping[str, str], query: Mapping[str, str]) -> None:
    """Raise NotSupported for unsupported headers and parameters: encryption with the caller's key, or a
    predefined ACL that grants access."""
    unsupported = [name for name in headers if name.startswith(_UNSUPPORTED_HEADERS)]
    unsupported += [
        name for name in _UNSUPPORTED_PARAMETERS if query.get(name, "").lower() not in ("", "false")
    ]
    for name in _ACLS:
        acl = query.get(name, headers.get(name, ""))
        if acl.replace("-", "").lower() not in _CLOSED_ACLS:
            unsupported.append(f"{name}={acl}")
    reject_unsupported(unsupported, "request")


def reject_unsupported(unsupported: list[str], what: str) -> None:
    """Raise NotSupported with the names in `unsupported`, unless this list is empty. `what`: the thing that
    contains these names, for the message."""
    if unsupported:
        raise NotSupported(
            f"This service does not support {', '.join(sorted(unsupported))} of the {what}, so nothing was "
            "stored. Omit it, and send the request again. Supported are versioning, holds, labels, "
            "storageClass and publicAccessPrevention."
        )


def _nested_value(settings: Mapping[str, Any], name: str, key: str) -> Any:
    """Return the value of a key in a setting; None if it is not set."""
    value = settings.get(name)
    return cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None


def _is_requested(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_requested, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_is_requested, cast("list[Any]", value)))
    return value not in _NEUTRAL
