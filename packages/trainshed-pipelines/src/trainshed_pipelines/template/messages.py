"""Checks JSON against the messages of the public template (KFP's `pipeline_spec.proto`): known fields, types,
and the placeholders in texts. `pipeline_spec.txt` lists the messages.

A `google.protobuf.Struct` carries templates, so integers may be floats. Like proto JSON, the reader accepts
names of fields in camelCase and in snake_case, and treats null as "not set".
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from trainshed.core.errors import InvalidRequest, closest, format_list
from trainshed.core.requests import Faults, Section, is_blank, nanoseconds
from trainshed_pipelines.template import placeholders
from trainshed_pipelines.template.values import MAX_DEPTH, is_number, plain, show

MAX_FAULTS: Final = 100
"""Maximum number of reported errors. Reading stops there, because each error takes time to describe."""
MAX_KEY: Final = 255
"""Maximum length of a key: the name of a component, task, input or output. Keys become names of files."""
_MAX_SUGGESTIONS: Final = 200
"""Maximum number of names that an error compares with an unknown name."""
_MAX_DURATION: Final = 365 * 86_400 * 10**9
"""Maximum length of a duration (ns): one year."""
#: Keys are parts of paths and of placeholders.
_KEY: Final = re.compile(rf"(?!\.{{1,2}}\Z)[^/'\x00-\x1f\x7f]{{1,{MAX_KEY}}}")

#: The contents of each field that is not supported, and the alternative.
_UNSUPPORTED: Final = {
    "single_platform_specs": ("Settings for Kubernetes", "Remove the calls of kfp.kubernetes"),
    "task_config_passthroughs": ("Task configurations", "Remove them from the component"),
    "schema_uri": ("Schemas in files", "Set schema_title, such as system.Model"),
    "resolver": ("Resolvers", "Import the artifact with dsl.importer"),
    "custom_job": ("Executors of the type custom_job", "Use CustomTrainingJobOp"),
    "pre_cache_check": ("Hooks before the cache check", "Remove the hook"),
    "download_to_workspace": ("Workspaces", "Remove the option of the importer"),
}


class TemplateFaults(Faults):
    """The errors of a template. Raises InvalidRequest at the error number MAX_FAULTS."""

    def add(self, field: str, description: str) -> None:
        super().add(field, description)
        if len(self._found) >= MAX_FAULTS:
            raise InvalidRequest(self.violations)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return `" Did you mean X?"` as `closest`, or "" if the comparison would take too long."""
    is_fast = len(known) <= _MAX_SUGGESTIONS and len(name) <= MAX_KEY
    return closest(name, known) if is_fast else ""


def entries(section: Section, name: str) -> Iterator[tuple[str, Section]]:
    """Yield the key and the message of each entry of the map `name`."""
    for key, content in cast("Mapping[str, Any]", section.values.get(name, {})).items():
        yield key, Section(content, f"{section.path}.{name}.{key}", section.faults)


def only(section: Section, *names: str) -> str:
    """Return the only field of `names` that is set. Report an error and return "" for none or several."""
    present = [name for name in names if section.has(name)]
    if len(present) == 1:
        return present[0]
    problem = f"{' and '.join(present)} are set" if present else "The content is missing"
    section.fault("", f"{problem}. Set exactly one of {', '.join(names)}.")
    return ""


def is_known(section: Section, field: str, kind: str, name: str, known: Collection[str]) -> bool:
    """Return whether a name in a field is known, and report an error if not. `kind`: what the name refers to,
    such as `input parameter`."""
    if name in known:
        return True
    near = suggestion(name, known)
    if not near:
        near = f" Set one of {format_list(known, 10)}." if known else " Remove the reference."
    section.faults.add(f"{section.path}.{field}", f"The {kind} {show(name)} does not exist.{near}")
    return False


def reference(section: Section, field: str, kind: str, known: Collection[str]) -> str:
    """Return the text of a field, which must be a known name. See `is_known`."""
    name = section.text(field)
    is_known(section, field, kind, name, known)
    return name


def conform(values: Mapping[str, Any], message: str, path: str, faults: Faults) -> dict[str, Any]:
    """Return the JSON of a message with names in snake_case, without unknown fields. `message`: its name in
    the schema. Integers and durations (ns) become `int`.

    Adds errors in fields and placeholders to `faults`. Raises InvalidRequest with all errors if a value has
    the wrong type, because the remaining checks would then find only its consequences.
    """
    reader = _Reader(faults)
    conforming = reader.message(dict(values), message, path)
    if reader.is_malformed:
        faults.refuse()
    return conforming


class _Reader:
    """Reads one template."""

    def __init__(self, faults: Faults) -> None:
        self.is_malformed = False
        self._faults = faults

    def message(self, values: Any, message: str, path: str) -> dict[str, Any]:
        fields = _FIELDS[message]
        conforming: dict[str, Any] = {}
        for spelling, value in self._items(values, path):
            name, kind = fields.get(spelling, ("", ""))
            if not name:
                self._faults.add(
                    f"{path}.{spelling}",
                    "This field does not exist in compiled pipelines of the versions 2.0 and 2.1."
                    f"{suggestion(spelling, fields)} Remove it, or compile the pipeline again.",
                )
            elif name in conforming:
                self._wrong(f"{path}.{name}", "The field is set twice. Remove one of the values.")
            elif value is not None or kind.startswith("json"):
                conforming[name] = self._value(value, kind, f"{path}.{name}")
        return conforming

    def _items(self, values: Any, path: str) -> list[tuple[str, Any]]:
        if not isinstance(values, dict):
            self._wrong(path, f"The value {show(values)} is not {_KINDS['object'][2]}.")
            return []
        items = list(cast("dict[str, Any]", values).items())
        for key, _ in items:
            if not _KEY.fullmatch(key):
                self._wrong(
                    path,
                    f"The name {show(key)} is empty, has more than {MAX_KEY} characters, or contains a "
                    "slash, a quote or a control character. Use letters, digits and hyphens.",
                )
                return []
        return items

    def _value(self, value: Any, kind: str, path: str) -> Any:
        if kind.startswith("{}"):
            return {
                key: self._value({} if item is None else item, kind[2:], f"{path}.{key}")
                for key, item in self._items(value, path)
            }
        if kind == "!":
            if not is_blank(value):
                contents, advice = _UNSUPPORTED[path.rpartition(".")[2]]
                text = f"{contents} are not supported. {advice}, and compile the pipeline again."
                self._faults.add(path, text)
            return value
        name = "[]" if kind.startswith("[]") else kind.removesuffix("$")
        if name not in _KINDS:
            return self.message(value, name, path)
        types, convert, expected = _KINDS[name]
        try:
            if not isinstance(value, types):
                raise ValueError
            converted = convert(value)
        except ValueError:
            return self._wrong(path, f"The value {show(value)} is not {expected}.")
        if name == "[]":
            items = enumerate(converted)
            return [self._value(item, kind[2:], f"{path}[{index}]") for index, item in items]
        if name != kind:
            self._check_placeholders(converted, path)
        return converted

    def _check_placeholders(self, value: Any, path: str) -> None:
        if isinstance(value, str):
            for fault in placeholders.faults(value):
                self._faults.add(path, fault)
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Any]", value)):
                self._check_placeholders(item, f"{path}[{index}]")
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                self._check_placeholders(item, f"{path}.{key}")

    def _wrong(self, path: str, description: str) -> None:
        self.is_malformed = True
        self._faults.add(path, description)


def _number(value: Any) -> float:
    if not is_number(value) or value < 0:
        raise ValueError
    return value


def _integer(value: Any) -> int:
    # Proto JSON represents integers of 64 bits as texts.
    number = _number(int(value) if isinstance(value, str) else value)
    if number != int(number):
        raise ValueError
    return int(number)


def _duration(value: str) -> int:
    if not 0 <= (length := nanoseconds(value)) <= _MAX_DURATION:
        raise ValueError
    return length


#: For each kind of values, its types in JSON, a conversion that raises ValueError, and a description.
_KINDS: Final[Mapping[str, tuple[Any, Callable[[Any], Any], str]]] = {
    "text": (str, str, "a text. Put it in quotes"),
    "flag": (bool, bool, "true or false"),
    "integer": ((str, int, float), _integer, "a non-negative integer such as 3"),
    "number": ((int, float), _number, "a non-negative number such as 0.5"),
    "duration": (str, _duration, "a duration such as 60s, of at most one year"),
    "object": (dict, plain, "an object such as {}"),
    "json": (object, plain, f"a JSON value with finite numbers and at most {MAX_DEPTH} levels"),
    "[]": (list, list, "a list such as []"),
}


def _camel_case(name: str) -> str:
    return re.sub("_[a-z]", lambda part: part[0][1].upper(), name)


_SCHEMA: Final = Path(__file__).with_name("pipeline_spec.txt").read_text().replace("\n  ", " ")
#: For each message, the name and the kind of its fields, by both spellings of their names.
_FIELDS: Final = {
    message: {
        spelling: (name, kind)
        for name, kind in map(str.split, fields.split(", "))
        for spelling in (_camel_case(name), name)
    }
    for message, fields in re.findall(r"^(\w+): (.*)$", _SCHEMA, re.MULTILINE)
}
