"""Checks tables of settings by their types, and describes every wrong field at once. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from trainshed.core.errors import closest


def wrong_fields(kind: type[msgspec.Struct], table: Mapping[str, Any], at: str = "") -> list[str]:
    """Return a message for each field that does not exist or has a wrong value. `at`: prefix of the fields'
    names in messages."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    wrong: list[str] = []
    for key, value in table.items():
        if key not in fields:
            hint = closest(key, fields) or f" There are {', '.join(fields)}."
            wrong.append(f"{at}{key}: there is no such setting.{hint}")
            continue
        deeper: list[str] = []
        for where, kind_inside, table_inside in _inside(
            key, value, inspect.type_info(fields[key].type)
        ):
            deeper += wrong_fields(kind_inside, table_inside, f"{at}{where}.")
        wrong += deeper
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as e:
            if not deeper:
                wrong_places = list(_in_words(value, inspect.type_info(fields[key].type)))
                wrong += [
                    f"{at}{key}{where}: {text}" for where, text in wrong_places or [("", str(e))]
                ]
    return wrong


def _inside(
    at: str, value: object, kind: inspect.Type
) -> Iterator[tuple[str, type[msgspec.Struct], Mapping[str, Any]]]:
    """Yield the tables that a setting consists of: how each is called, and of what kind it is."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _inside(at, value, inner)
        case inspect.UnionType(types=types):
            for inner in types:
                yield from _inside(at, value, inner)
        case inspect.StructType(cls=cls) if isinstance(value, Mapping):
            yield at, cls, cast("Mapping[str, Any]", value)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner) if (
            isinstance(value, list)
        ):
            for number, item in enumerate(cast("list[object]", value)):
                yield from _inside(f"{at}[{number}]", item, inner)
        case inspect.DictType(value_type=inner) if isinstance(value, Mapping):
            for name, item in cast("Mapping[str, object]", value).items():
                yield from _inside(f"{at}.{name}", item, inner)
        case _:
            pass


def _in_words(value: object, wanted: inspect.Type, meaning: str = "") -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a value as (place in it, message). `meaning`: the description of its type."""
    match wanted:
        case inspect.Metadata(type=inner):
            schema: Mapping[str, object] = cast("Any", wanted).extra_json_schema or {}
            yield from _in_words(value, inner, str(schema.get("description", meaning)))
        case inspect.UnionType(types=types):
            [inner] = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
            yield from _in_words(value, inner, meaning)
        case inspect.BoolType() if not isinstance(value, bool):
            yield "", f"{value!r} is neither true nor false; write one of them, without quotes"
        case inspect.StrType() if not isinstance(value, str):
            yield "", f"{value!r} is no text; put it in quotes"
        case inspect.StrType(pattern=pattern) if not re.search(pattern or "", str(value)):
            yield "", f"{value!r} does not go there; write {meaning or f'what {pattern} matches'}"
        case inspect.LiteralType(values=values) if value not in values:
            yield "", f"{value!r} is none of {', '.join(map(repr, values))}; write one of them"
        case inspect.IntType() | inspect.FloatType():
            yield from _in_words_of_number(value, wanted)
        case inspect.ListType() | inspect.VarTupleType() | inspect.DictType():
            yield from _in_words_of_many(value, wanted)
        case _:
            pass


def _in_words_of_number(
    value: object, wanted: inspect.IntType | inspect.FloatType
) -> Iterator[tuple[str, str]]:
    kinds = int if isinstance(wanted, inspect.IntType) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        whole = "whole " if isinstance(wanted, inspect.IntType) else ""
        yield "", f"{value!r} is no {whole}number; write one, without quotes"
    elif wanted.ge is not None and value < wanted.ge:
        yield "", f"{value} is too little; write {wanted.ge:g} or more"
    elif wanted.le is not None and value > wanted.le:
        yield "", f"{value} is too much; write {wanted.le:g} or less"


def _in_words_of_many(
    value: object, wanted: inspect.ListType | inspect.VarTupleType | inspect.DictType
) -> Iterator[tuple[str, str]]:
    if not isinstance(wanted, inspect.DictType):
        if not isinstance(value, list):
            yield "", f"{value!r} is no list; put it in brackets"
            return
        items = cast("list[object]", value)
        if wanted.max_length is not None and len(items) > wanted.max_length:
            yield "", f"has {len(items)} entries; write {wanted.max_length} at most"
        for number, item in enumerate(items):
            for where, text in _in_words(item, wanted.item_type):
                yield f"[{number}]{where}", text
        return
    if not isinstance(value, Mapping):
        yield "", f"{value!r} is no table; write NAME = VALUE below its heading"
        return
    for name, item in cast("Mapping[str, object]", value).items():
        for _, text in _in_words(name, wanted.key_type):
            yield "", f"as a name {text}"
        for where, text in _in_words(item, wanted.value_type):
            yield f".{name}{where}", text
