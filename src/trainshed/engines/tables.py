"""What is wrong with the tables of settings of engines, by field: everything at once. Pure."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from trainshed.core.catalog.accelerators import accelerator_types
from trainshed.core.names import Api

Inside = Callable[[str, object], Iterable[tuple[str, type[msgspec.Struct], Mapping[str, Any]]]]
"""From a setting to the tables that it consists of: how each is called, and of what kind it is."""


def wrong_fields(
    kind: type[msgspec.Struct], table: Mapping[str, Any], inside: Inside, at: str = ""
) -> list[str]:
    """Those that there are not, and those whose value is not what it must be. `at`: what stands before their
    names."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    wrong: list[str] = []
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            wrong.append(f"{at}{key}: there is no such setting; {hint}")
            continue
        deeper: list[str] = []
        for where, kind_inside, one in inside(key, value):
            deeper += wrong_fields(kind_inside, one, inside, f"{at}{where}.")
        wrong += deeper
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as e:
            if not deeper:
                wrong.append(f"{at}{key}: {e}")
    return wrong


def unknown_accelerators(names: Iterable[str]) -> Iterator[str]:
    """What is to be said of those that are no public accelerator types."""
    known = sorted({name for api in Api for name in accelerator_types(api)})
    for public in names:
        if public not in known:
            near = difflib.get_close_matches(re.sub("-", "_", public.upper()), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            yield f"there is no accelerator type {public!r}; {hint}"
