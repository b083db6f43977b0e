"""Placeholders in compiled pipelines, such as `{{$.inputs.parameters['x']}}`. Pure.

Placeholders appear in constants, in default values of inputs, and in the texts of executors. The arguments of
containers may also be JSON structures with the key `Concat` or `IfPresent`. Values replace placeholders in a
single pass: a `{{$}}` within a value remains text. Unknown placeholders remain as they are. `faults` reports
them before a pipeline starts.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from msgspec import UNSET, Struct, UnsetType

from trainshed.core.errors import closest
from trainshed_pipelines.template.structures import Json
from trainshed_pipelines.template.values import to_text

MAX_RESULT = 8 << 20
"""Maximum number of characters of a resolved text, of all texts in a value, and of a command's arguments."""
_MAX_NAME = 200
"""Maximum number of characters of an unknown placeholder that are compared with the known ones."""


def local_path(uri: str) -> str:
    """Return the path at which programs see a `gs://` URI. Other addresses are returned unchanged."""
    return re.sub("^gs://", "/gcs/", uri)


class Context(Struct, frozen=True, kw_only=True):
    """The values of placeholders. The fields `pipeline_…` are the texts of the placeholders of that name.

    Default values of inputs need only those fields, constants also need `parameters`, and the texts of
    executors need all fields. Placeholders without a source remain in the text for a later step.
    """

    pipeline_job_name: str
    pipeline_job_resource_name: str
    pipeline_job_uuid: str
    pipeline_task_name: str
    pipeline_task_uuid: str
    pipeline_root: str
    pipeline_job_create_time_utc: str
    pipeline_job_schedule_time_utc: str
    pipeline_google_cloud_location: str
    pipeline_google_cloud_project_id: str
    pipeline_service_account: str
    pipeline_network: str = ""
    pipeline_persistent_resource_id: str = ""
    pipeline_encryption_key_name: str = ""
    #: The input parameters of the task by key, or None if they are not known yet.
    parameters: Mapping[str, Json] | None = None
    #: The task's ExecutorInput as JSON (`runs.executor_io`), or None if it does not exist yet.
    executor_input: Mapping[str, Json] | None = None
    #: Whether the author of the texts has put them into a string of a JSON text. This applies to the worker
    #: pools of training components. Their placeholders then have one level of `json_escape` too many.
    is_inside_json: bool = False

    def resolve_text(self, text: str) -> str:
        """Return a text with the values of its placeholders. Missing inputs become empty. Raises ValueError
        if the result exceeds `MAX_RESULT`."""
        return _Resolver(self).text(text)

    def resolve_texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Resolve several texts like `resolve_text`. The limit applies to all of them together."""
        resolver = _Resolver(self)
        return tuple([resolver.text(text) for text in texts])

    def resolve_value(self, value: Json) -> Json:
        """Resolve all texts in a JSON value, including keys. Raises ValueError as `resolve_text`.

        A text that consists of one placeholder of an input parameter becomes the parameter's value, with its
        type. It becomes None if the parameter is missing.
        """
        return _Resolver(self).value(value)

    def resolve_args(self, args: Iterable[str]) -> tuple[str, ...]:
        """Return the arguments of a command. An `IfPresent` may become any number of arguments. Raises
        ValueError as `resolve_text`, and for a malformed structure."""
        resolver = _Resolver(self)
        return tuple(
            part for arg in args for part in _expand(_structure(arg), resolver.text, resolver.is_present)
        )


class _Resolver:
    """Replaces the placeholders in texts, up to a total length of `MAX_RESULT` characters."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._left = MAX_RESULT

    def text(self, text: str) -> str:
        self._spend(len(text))
        return _PLACEHOLDER.sub(self._replace, text)

    def value(self, value: Json) -> Json:
        if isinstance(value, list):
            return [self.value(item) for item in cast("list[Json]", value)]
        if isinstance(value, dict):
            items = cast("dict[str, Json]", value).items()
            return {self.text(key): self.value(item) for key, item in items}
        if not isinstance(value, str):
            return value
        match = None if self._context.is_inside_json else _PLACEHOLDER.fullmatch(value)
        if match and self._context.parameters is not None and _form(match[1])[0] == _PARAMETER:
            return self._value(match)
        return self.text(value)

    def is_present(self, name: str) -> bool:
        artifacts = _get(self._context.executor_input, "inputs", "artifacts", name, "artifacts")
        return (self._context.parameters or {}).get(name) is not None or bool(artifacts)

    def _spend(self, length: int) -> None:
        self._left -= length
        if self._left < 0:
            limit = f"more than {MAX_RESULT} characters. Pass large values as artifacts."
            raise ValueError(f"The texts with placeholders have {limit}")

    def _replace(self, match: re.Match[str]) -> str:
        value = self._value(match)
        if value is UNSET:
            return match[0]
        text = to_text(value)
        self._spend(len(text) - len(match[0]))
        return text

    def _value(self, match: re.Match[str]) -> Json | UnsetType:
        """Return the value of a placeholder, or UNSET to leave it in the text."""
        form, keys = _form(match[1])
        if form in _FACTS:
            return getattr(self._context, form[1:])
        if form.startswith(_PARAMETER) and form in _FORMS:
            if self._context.parameters is None:
                return UNSET
            value = self._context.parameters.get(keys[0])
            # Level 0 of a parameter is its text as the contents of a JSON string. Level 0 of the
            # ExecutorInput is JSON, and only level 1 is the contents of a JSON string.
            return value if len(keys) == 1 else self._escape(value, int(keys[1]) + 1)
        executor_input = self._context.executor_input
        if executor_input is None or form not in _FORMS:
            return UNSET
        match form[1:].split("."):
            case [""]:
                return dict(executor_input)
            case ["json_escape[N]"]:
                return self._escape(dict(executor_input), int(keys[0]))
            case ["outputs", "parameters[K]", _]:
                return _get(executor_input, "outputs", "parameters", keys[0], "outputFile")
            case [side, "artifacts[K]"]:
                return _get(executor_input, side, "artifacts", keys[0])
            case [side, "artifacts[K]", attribute]:
                artifacts = _get(executor_input, side, "artifacts", keys[0], "artifacts")
                return _attribute(artifacts, attribute, keys[1:])
            case _:
                return _get(executor_input, "outputs", "outputFile")

    def _escape(self, value: Json, level: int) -> str:
        text = to_text(value)
        for _ in range(level - self._context.is_inside_json):
            text = json.dumps(text)[1:-1]
        return text


def faults(text: str) -> Iterator[str]:
    """Yield a message for each unknown placeholder, and for each malformed structure, of a text."""
    parts: list[str] = []

    def add(part: str) -> str:
        parts.append(part)
        return part

    try:
        _expand(_structure(text), add, lambda name: None)
    except ValueError as error:
        yield str(error)
    except RecursionError:
        yield "The argument has too many nested structures."
    names = set[str]()
    for part in parts:
        for start in _START.finditer(part):
            match = _PLACEHOLDER.match(part, start.start())
            if match is None or _form(match[1])[0] not in _FORMS:
                beginning = part[start.start() : start.start() + _MAX_NAME]
                name = match[0][:_MAX_NAME] if match else beginning.partition("}}")[0] + "}}"
                # A text may repeat a placeholder a million times, and `closest` takes milliseconds.
                if name not in names:
                    names.add(name)
                    yield f"The placeholder {name[:80]} does not exist.{closest(name, _KNOWN)}"


_PLACEHOLDER = re.compile(r"\{\{\$((?:\.\w+|\[[^\[\]{}]*\])*)\}\}")
_START = re.compile(r"\{\{\$(?=[.\[}])")
_KEY = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|''([^']*)''|([0-3]))\]""")
_STRUCTURE = re.compile(r'\s*\{\s*"(?:Concat|IfPresent)"\s*:')
_STRUCTURES = "Use Concat with a list, or IfPresent with InputName, Then and Else."
_FACTS = frozenset(f".{name}" for name in Context.__struct_fields__ if name.startswith("pipeline_"))
_PARAMETER = ".inputs.parameters[K]"
_ATTRIBUTES = ("", ".uri", ".path", ".name", ".metadata", ".metadata[K]", ".properties[K]")
_FORMS = (
    "",
    ".json_escape[N]",
    _PARAMETER,
    f"{_PARAMETER}.json_escape[N]",
    ".outputs.parameters[K].output_file",
    ".outputs.output_file",
    ".outputs.output_metadata_uri",
    ".outputMetadataUri",
    *(f".{side}.artifacts[K]{name}" for side in ("inputs", "outputs") for name in _ATTRIBUTES),
    *sorted(_FACTS),
)
"""The known placeholders without braces. K is a key in quotes, N a number."""
_KNOWN = tuple("{{$" + form.replace("[K]", "['NAME']").replace("[N]", "[1]") + "}}" for form in _FORMS)


def _form(path: str) -> tuple[str, list[str]]:
    """Return the form of a placeholder and its keys: `.inputs.parameters[K]` and `["x"]`."""
    keys: list[str] = []

    def replace(match: re.Match[str]) -> str:
        *quoted, number = match.groups()
        keys.append(number or next((key for key in quoted if key), ""))
        return "[N]" if number else "[K]"

    return _KEY.sub(replace, path), keys


def _structure(arg: str) -> Json:
    """Return the structure in an argument, or the argument itself if it is plain text."""
    if _STRUCTURE.match(arg):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(arg)
    return arg


def _expand(
    element: Json, resolve: Callable[[str], str], is_present: Callable[[str], bool | None]
) -> list[str]:
    """Return the arguments of a command that a part of a structure creates. `is_present`: whether an input is
    present; None = expand both branches."""
    match element:
        case None:
            return []
        case list():
            items = cast("list[Json]", element)
            return [part for item in items for part in _expand(item, resolve, is_present)]
        case {"Concat": list(), **others} if not others:
            return ["".join(_expand(element["Concat"], resolve, is_present))]
        case {"IfPresent": {"InputName": str(name), "Then": then, **rest}, **others} if (
            not others and rest.keys() <= {"Else"}
        ):
            branches = {True: [then], False: [rest.get("Else")], None: [then, rest.get("Else")]}
            return _expand(branches[is_present(name)], resolve, is_present)
        case str() | int() | float():
            return [resolve(to_text(element))]
        case _:
            raise ValueError(f"The structure {to_text(element)[:80]} is not valid. {_STRUCTURES}")


def _get(value: Json, *keys: str) -> Json:
    for key in keys:
        value = cast("Mapping[str, Json]", value).get(key) if isinstance(value, Mapping) else None
    return value


def _attribute(artifacts: Json, attribute: str, keys: list[str]) -> Json | UnsetType:
    """Return an attribute of the first artifact. A missing artifact has empty attributes. As in the public
    service, the placeholder of a missing metadata key remains in the text."""
    if not artifacts:
        return ""
    if attribute == "path":
        return local_path(_get(artifacts[0], "uri") or "")
    if keys:
        metadata: Mapping[str, Json] = _get(artifacts[0], "metadata") or {}
        return metadata.get(keys[0], UNSET)
    return _get(artifacts[0], attribute)
