"""Generates the reference of `/trainshed/v1` (docs/api.md of the site) from the method table, the handlers
and the records."""

import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

import msgspec

from trainshed.access.permissions import PERMISSIONS
from trainshed.api.calls.http import NDJSON
from trainshed.api.trainshed_v1.transport import METHODS, Method
from trainshed.wire.trainshed_v1 import access, capacity, jobs, replicas, timeline
from trainshed.wire.trainshed_v1.record import Nothing, Record

_RECORDS: Final[tuple[ModuleType, ...]] = (jobs, timeline, replicas, capacity, access)
_CODE: Final = re.compile(r"`(?:GET|POST|PUT|DELETE) /trainshed/v1/([^`]*)`(?:, )?")
_VARIABLE: Final = re.compile(r"\{\w+\}")
_QUERY: Final = re.compile(r"[?&](\w+)=")
_FIELD: Final = re.compile(r"    (\w+): ")


def page(introduction: str) -> str:
    """Return the whole page. `introduction`: the handwritten part."""
    parts = [introduction, "\n## Methods\n"]
    for (verb, path), method in METHODS.items():
        parts.append(_method(verb, path, method))
    parts.append("\n## Records\n")
    for module in _RECORDS:
        parts += [_record(record) for record in records_of(module)]
    return "".join(parts)


def records_of(module: ModuleType) -> Iterator[type[Record]]:
    """Return the records that a module defines, in order."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Record) and value.__module__ == module.__name__:
            yield value


def _method(verb: str, path: str, method: Method) -> str:
    handler = method.answer or method.stream
    text = re.sub(r"\s+", " ", inspect.getdoc(handler) or "")
    code = next((result for result in _CODE.findall(text) if _is_of(result, path)), "")
    about = _CODE.sub("", text, count=len(_CODE.findall(text.split("`: ")[0] + "`"))).removeprefix(": ")
    lines = [f"\n### {verb} /trainshed/v1/{path}\n", _sentence(about), "\n"]
    if query := _QUERY.findall(code):
        lines.append("\n- Query: " + ", ".join(f"`{name}`" for name in query) + ".")
    if method.body is not Nothing:
        lines.append(f"\n- Body: {_link(method.body)}.")
    if method.answer is not None:
        answer = get_type_hints(method.answer)["return"]
        lines.append("\n- Answer: `{}`." if answer is Nothing else f"\n- Answer: {_link(answer)}.")
    else:
        lines.append(f"\n- Answer: a stream, `{NDJSON.decode()}`.")
    lines.append(f"\n- Permission: `{PERMISSIONS[method.name]}`.\n")
    return "".join(lines)


def _is_of(code: str, path: str) -> bool:
    """Return whether `code`, a path in a docstring, describes `path`. The names of the variables may differ,
    and the query of `code` is ignored."""
    return _VARIABLE.sub("*", re.split(r"[?\[ ]", code)[0]) == _VARIABLE.sub("*", path)


def _sentence(text: str) -> str:
    text = re.sub(r"[ \n]+", " ", text).strip()
    return text[:1].upper() + text[1:]


def _record(record: type[Record]) -> str:
    lines = [f"\n### {record.__name__}\n", inspect.getdoc(record) or "", "\n"]
    meanings = _field_comments(record)
    fields = msgspec.structs.fields(record)
    if fields:
        lines.append("\n| field | type | meaning |\n| --- | --- | --- |\n")
    for field in fields:
        absent = " May be absent." if msgspec.UnsetType in get_args(field.type) else ""
        meaning = (meanings.get(field.name, "") + absent).strip()
        lines.append(f"| `{field.encode_name}` | {_type(field.type)} | {meaning} |\n")
    return "".join(lines)


def _field_comments(record: type[Record]) -> dict[str, str]:
    """Return the comments above the fields of a record, including those of its base classes."""
    result: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if not issubclass(base, Record):
            continue
        comment: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if line.startswith("    #: "):
                comment.append(line[7:])
            elif match := _FIELD.match(line):
                result[match[1]] = " ".join(comment).replace("|", "\\|")
                comment = []
    return result


def _type(kind: Any) -> str:
    """Return a type's name in JSON terms, with a link if the type is a record."""
    if kind in _ALL:
        return _link(kind)
    arguments = get_args(kind)
    name = getattr(kind, "__name__", "")
    match name:
        case "tuple" if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"list of {_type(arguments[0])}"
        case "tuple":
            return "[" + ", ".join(map(_type, arguments)) + "]"
        case "Mapping":
            return f"object of {_type(arguments[1])}"
        case "str":
            return "text"
        case "int" | "float":
            return "number"
        case "bool":
            return "boolean"
        case "NoneType":
            return "null"
        case "Any":
            return "anything"
        case _:
            return _union_text(arguments)


def _union_text(kinds: Iterable[Any]) -> str:
    return " or ".join(_type(kind) for kind in kinds if kind is not msgspec.UnsetType)


def _link(record: type[Record]) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


_ALL: Final = frozenset(record for module in _RECORDS for record in records_of(module))
