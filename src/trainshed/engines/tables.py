"""What is wrong with the tables of settings of engines, by field: everything at once. Pure."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from trainshed.core.catalog.accelerators import accelerator_types
from trainshed.core.catalog.machines import closest, machine_types
from trainshed.core.names import Api
from trainshed.core.routes import MachineWanted, Route

Inside = Callable[[str, object], Iterable[tuple[str, type[msgspec.Struct], Mapping[str, Any]]]]
"""From a setting to the tables that it consists of: how each is called, and of what kind it is."""


class ForMachines(Protocol):
    """One of the tables `machines` of an engine."""

    @property
    def types(self) -> list[str]: ...

    @property
    def accelerators(self) -> list[str]: ...


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


def wrong_machines(tables: Sequence[ForMachines], engine: str) -> list[str]:
    """What is wrong with the machines that each of an engine's tables `machines` is for, of which the first
    that is for a machine counts. `engine`: its name in the configuration."""
    wrong: list[str] = []
    types, devices = machine_types(), {name for api in Api for name in accelerator_types(api)}
    left = {MachineWanted(name, device) for name in types for device in ("", *devices)}
    for number, one in enumerate(tables):
        at = f"machines[{number}]"
        unknown = list(unknown_accelerators(one.accelerators))
        wrong += [f"{at}.accelerators: {line}" for line in unknown]
        strange = [name for name in one.types if not any(fnmatchcase(t, name) for t in types)]
        for name in strange:
            hint = closest(name, types) or " Such as n1-standard-4, or n1-* for all of a series."
            wrong.append(f"{at}.types: no machine type is called {name!r}.{hint}")
        mine = {m for m in left if Route(tuple(one.types), tuple(one.accelerators)).is_for(m)}
        if not mine and not strange and not unknown:
            wrong.append(
                f"{at}: those before it are for all of its machines already; put it before them"
            )
        if not one.types and not one.accelerators:
            wrong.append(
                f"{at}: it names neither types nor accelerators; what is for all machines is said in "
                f"[engines.{engine}] itself"
            )
        left -= mine
    return wrong
