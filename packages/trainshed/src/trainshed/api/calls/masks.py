"""Field masks: the `readMask` of get and list requests, and the `updateMask` of updates."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from trainshed.api.calls.call import camel_case
from trainshed.core.errors import InvalidRequest, Violation


def apply_read_mask(answer: Message, request: Any) -> Message:
    """Return a resource, or a list of resources, reduced to the fields in the request's `read_mask`. Raises
    InvalidRequest."""
    mask = getattr(request, "read_mask", None)
    if mask is None or not mask.paths or "*" in mask.paths:
        return answer
    is_list = request.DESCRIPTOR.name.startswith("List")
    lists = [rows for part, rows in answer.ListFields() if part.message_type] if is_list else []
    for resources in lists if is_list else [[answer]]:
        for resource in resources:
            fields, keys = _split_paths(mask, resource.DESCRIPTOR)
            if not fields.IsValidForDescriptor(resource.DESCRIPTOR):
                wrong = (
                    f"{','.join(mask.paths)!r} contains fields that {resource.DESCRIPTOR.name} does not have."
                )
                advice = "Specify existing fields, separated by commas, such as name,displayName."
                raise InvalidRequest((Violation("read_mask", f"{wrong} {advice}"),))
            masked = type(resource)()
            fields.MergeMessage(resource, masked)
            for field, wanted in keys.items():
                content = getattr(masked, field).fields
                for key in content.keys() - wanted:
                    del content[key]
            resource.CopyFrom(masked)
    return answer


def _split_paths(mask: Any, descriptor: Any) -> tuple[Any, dict[str, set[str]]]:
    """Return the mask with the fields of its paths into Structs, such as `pipeline_spec.pipeline_info`, and
    the keys in these paths by field. Protobuf does not support such paths."""
    paths: list[str] = []
    keys: dict[str, set[str]] = {}
    for path in mask.paths:
        name, _, key = path.partition(".")
        part = descriptor.fields_by_name.get(name)
        kind = part.message_type if part is not None else None
        if key and kind is not None and kind.full_name == "google.protobuf.Struct":
            keys.setdefault(name, set()).add(camel_case(key.partition(".")[0]))
        paths.append(name if name in keys else path)
    whole = keys.keys() & set(mask.paths)
    return type(mask)(paths=paths), {name: keys[name] for name in keys.keys() - whole}


def read_update_mask(paths: Sequence[str], allowed: Sequence[str], resource: Any = None) -> tuple[str, ...]:
    """Return the fields of an update mask without duplicates.

    Paths may be in snake_case or camelCase. `*` selects all fields. Without a mask, return the fields that
    are set in `resource`, or () without a resource. Raises InvalidRequest for fields that cannot be updated.
    """
    spelled = {camel_case(field): field for field in allowed}
    fields = tuple(dict.fromkeys(spelled.get(path, path) for path in paths if path != "*"))
    if wrong := [field for field in fields if field not in allowed]:
        text = f"Only {', '.join(allowed)} can be updated, not {', '.join(wrong)}."
        raise InvalidRequest((Violation("update_mask", text),))
    all_of = () if resource is None else allowed
    return fields or tuple([field for field in all_of if paths or getattr(resource, field)])
