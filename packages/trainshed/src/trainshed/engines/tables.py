"""Validates tables of settings by their types, and describes all wrong fields together. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from trainshed.core.errors import closest


def wrong_fields(kind: type[msgspec.Struct], table: Mapping[str, Any], at: str = "") -> list[str]:
    """Return an error message for each field that does not exist or has a wrong value. `at`: prefix of the
    field names in the messages."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    wrong: list[str] = []
    for key, value in table.items():
        if key not in fields:
            hint = closest(key, fields) or f" There are {', '.join(fields)}."
            wrong.append(f"{at}{key}: there is no such setting.{hint}")
            continue
        faults = list(_faults(value, inspect.type_info(fields[key]), f"{at}{key}"))
        try:
            msgspec.convert(value, fields[key])
        except msgspec.ValidationError as e:
            faults = faults or [f"{at}{key}: {e}"]
        wrong += faults
    return wrong


def _faults(value: object, wanted: inspect.Type, at: str, meaning: str = "") -> Iterator[str]:
    """Yield an error message for each error in a value and its parts. `at`: name of the value in the
    messages. `meaning`: description of its type."""
    match wanted:
        case inspect.Metadata(type=inner):
            schema: Mapping[str, object] = cast("Any", wanted).extra_json_schema or {}
            yield from _faults(value, inner, at, str(schema.get("description", meaning)))
        case inspect.UnionType(types=types):
            [inner] = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
            yield from _faults(value, inner, at, meaning)
        case inspect.StructType(cls=cls) if isinstance(value, Mapping):
            yield from wrong_fields(cls, cast("Mapping[str, Any]", value), f"{at}.")
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            items = cast("list[object]", value)
            if wanted.max_length is not None and len(items) > wanted.max_length:
                yield f"{at}: has {len(items)} entries; write {wanted.max_length} at most"
            for number, item in enumerate(items):
                yield from _faults(item, wanted.item_type, f"{at}[{number}]")
        case inspect.DictType() if isinstance(value, Mapping):
            for name, item in cast("Mapping[str, object]", value).items():
                yield from _faults(name, wanted.key_type, f"{at}: as a name")
                yield from _faults(item, wanted.value_type, f"{at}.{name}")
        case _:
            if misfit := _misfit(value, wanted, meaning):
                yield f"{at}: {misfit}"


def _misfit(value: object, wanted: inspect.Type, meaning: str) -> str | None:
    """Return an error if the value itself is invalid, such as a wrong type. Return None if it is valid. The
    entries of lists and tables are not checked."""
    match wanted:
        case inspect.BoolType() if not isinstance(value, bool):
            return f"{value!r} is neither true nor false; write one of them, without quotes"
        case inspect.StrType() if not isinstance(value, str):
            return f"{value!r} is not a text; put it in quotes"
        case inspect.StrType(pattern=pattern) if not re.search(pattern or "", str(value)):
            return f"{value!r} is not valid here; write {meaning or f'what {pattern} matches'}"
        case inspect.LiteralType(values=values) if value not in values:
            return f"{value!r} is none of {', '.join(map(repr, values))}; write one of them"
        case inspect.IntType() if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not a whole number; write one, without quotes"
        case inspect.FloatType() if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{value!r} is not a number; write one, without quotes"
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least) if (
            least is not None and cast("float", value) < least
        ):
            return f"{value} is too small; write {least:g} or more"
        case inspect.IntType(le=most) | inspect.FloatType(le=most) if (
            most is not None and cast("float", value) > most
        ):
            return f"{value} is too large; write {most:g} or less"
        case inspect.ListType() | inspect.VarTupleType():
            return f"{value!r} is not a list; put it in brackets"
        case inspect.DictType():
            return f"{value!r} is not a table; write NAME = VALUE below its heading"
        case _:
            return None
