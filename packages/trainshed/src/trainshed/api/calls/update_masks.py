"""Update masks: which fields a request replaces."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from trainshed.core.errors import InvalidRequest, Violation


def read_update_mask(
    paths: Iterable[str], allowed: Sequence[str], *, open_fields: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the fields that a mask names in snake_case or camelCase, each once; () = no mask, or `*`.
    `open_fields`: fields of which a mask can also name a part. Raises InvalidRequest for what cannot be
    updated."""
    spelled = {camel(field): field for field in allowed}
    fields = tuple(dict.fromkeys(spelled.get(path, path) for path in paths if path != "*"))
    parts = tuple(f"{field}." for field in open_fields)
    if wrong := [field for field in fields if field not in allowed and not field.startswith(parts)]:
        text = f"Only {', '.join(allowed)} can be updated, not {', '.join(wrong)}."
        raise InvalidRequest((Violation("update_mask", text),))
    return fields


@lru_cache(1024)
def camel(field: str) -> str:
    """Return `displayName` for `display_name`."""
    first, *others = field.split("_")
    return first + "".join(map(str.title, others))
