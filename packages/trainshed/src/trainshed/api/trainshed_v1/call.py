"""One call of a method of `/trainshed/v1`: it takes a path, a query and perhaps a JSON body, and answers
records or lines of them.

A body is read field by field, so that everything wrong with it is told at once.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from trainshed.access.principals import Principal
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Services
from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import FilterError
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import Api
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import Nothing, Record

LAST_MOMENT: Final = 2**63 - 1
"""The last one that the store can compare with."""
_NAMED = 3
"""Most suggestions for a misspelled name."""


class Fields:
    """Reads one JSON object. Each reader returns a value of its type in any case and notes what is wrong;
    call `refuse` at the end."""

    def __init__(self, values: Mapping[str, Any], record: type[Record] | None = None) -> None:
        """`record`: the record whose fields these are; None if they are not a body's."""
        self._values = values
        self._names = frozenset(record.__struct_encode_fields__) if record else None
        self._faults: list[Violation] = []
        self._asked: dict[str, None] = {}

    def fault(self, name: str, description: str) -> None:
        """Note that a field is wrong."""
        self._faults.append(Violation(name, description))

    def text(self, name: str, *, required: bool = False) -> str:
        """Return a text; "" if it was not given."""
        value = self._value(name, str, "a text", required=required)
        if required and value == "":
            self.fault(name, "It must not be empty.")
        return value or ""

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices`, which must be given."""
        value = self._value(name, str, f"one of {', '.join(choices)}", required=True)
        if value is not None and value not in choices:
            advice = near(value, choices)
            self.fault(name, f"{value!r} is not one of: {', '.join(choices)}.{advice}")
        return value if value is not None and value in choices else ""

    def flag(self, name: str) -> bool:
        """Return a boolean; False if it was not given."""
        return self._value(name, bool, "true or false") or False

    def number(self, name: str, *, most: float, required: bool = False) -> float:
        """Return a number between 0 and `most`; 0 if it was not given."""
        value: float | None = self._value(name, (int, float), "a number", required=required)
        if value is not None and not 0 <= value <= most:
            text = f"It must be at least 0 and at most {most:g}, not {str(value)[:40]}."
            self.fault(name, text)
        return value if value is not None and 0 <= value <= most else 0

    def raw(self, name: str) -> Any:
        """Return the value as it is; None if it was not given."""
        self._ask(name)
        return self._values.get(name)

    def mapping(self, name: str, *, required: bool = False) -> Mapping[str, Any]:
        """Return an object as it is, for others to check; empty if it was not given."""
        return self._value(name, dict, "an object", required=required) or {}

    def refuse(self) -> None:
        """Raise InvalidRequest with everything that was noted, and with every field that no reader was called
        for."""
        known = tuple(self._asked)
        for name in self._values:
            if name not in known:
                text = f"There is no such field here; there is: {', '.join(known) or 'none'}."
                self.fault(name, text + near(name, known))
        if self._faults:
            raise InvalidRequest(tuple(dict.fromkeys(self._faults)))

    def _ask(self, name: str) -> None:
        assert self._names is None or name in self._names, f"{name} is no field of the record"
        self._asked[name] = None

    def _value(
        self, name: str, kind: type | tuple[type, ...], what: str, *, required: bool = False
    ) -> Any:
        """Return the value if it is given and of its kind; a boolean does not count as a number."""
        self._ask(name)
        value = self._values.get(name)
        if value is None:
            if required:
                self.fault(name, f"It must be given: {what}.")
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fault(name, f"It must be {what}, not {_kind(value)}.")
            return None
        return value


def near(word: str, known: Sequence[str]) -> str:
    """Return ` Did you mean …?` with names that begin with the word or are spelled alike, in either case; ""
    if there are none."""
    import difflib  # Loaded late: an idle service does without it (docs/adr/0083).

    names = {name.lower(): name for name in known}
    typed = word.lower()
    longer = [name for name in names if typed and name.startswith(typed)]
    close = difflib.get_close_matches(typed, list(names), n=_NAMED)
    suggestions = list(dict.fromkeys([*longer, *close]))[:_NAMED]
    return (
        f" Did you mean {' or '.join(names[name] for name in suggestions)}?" if suggestions else ""
    )


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


class JsonCall(Struct, frozen=True):
    """One call, with what all methods read alike."""

    principal: Principal
    services: Services
    #: The decoded name in the path, such as a job's, node's or plan's; "" where there is none.
    target: str
    #: Values of parameters by name.
    query: Mapping[str, Sequence[str]]
    #: The JSON object that was sent; empty if there was none.
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: The record that the body is read as.
    record: type[Record] = Nothing

    def fields(self) -> Fields:
        """Return the body, to be read field by field; `Fields.refuse` must follow."""
        return Fields(self.body, self.record)

    def queried(self, *names: str) -> Fields:
        """Return these parameters of the query, to be read as the fields of a body."""
        return Fields({name: self.parameter(name) or None for name in names})

    def parameter(self, name: str) -> str:
        """Return the last value of a query parameter; "" if it was not given."""
        values = self.query.get(name)
        return values[-1] if values else ""

    def number(self, name: str) -> int:
        """Return a parameter as a whole number; 0 if it was not given. Raises InvalidRequest."""
        text = self.parameter(name)
        if not text:
            return 0
        if not text.isdecimal() or len(text) > 18:
            raise InvalidRequest((Violation(name, f"{text!r} is not a whole number."),))
        return int(text)

    def moment(self, name: str) -> Nanos:
        """Return a parameter's time in ns since the epoch; 0 if it was not given. Raises InvalidRequest."""
        text = self.parameter(name)
        try:
            return Nanos(max(0, min(moment(text), LAST_MOMENT)) if text else 0)
        except FilterError as wrong:
            raise InvalidRequest((Violation(name, str(wrong)),)) from None

    def flag(self, name: str) -> bool:
        """Whether the parameter was given as `true`, `1`, or without a value. Raises InvalidRequest."""
        if name not in self.query:
            return False
        text = self.parameter(name).lower()
        if text in ("", "true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise InvalidRequest((Violation(name, f"{text!r} is neither true nor false."),))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a parameter, which may be repeated or hold commas."""
        return tuple(
            part for value in self.query.get(name, ()) for part in value.split(",") if part
        )


JsonHandler = Callable[[JsonCall], Awaitable[Record]]
StreamHandler = Callable[[JsonCall], Awaitable[AsyncGenerator[bytes]]]
"""Raises what is wrong before the first line is requested; the lines are JSON, each with its line end."""


def read_project(call: JsonCall, fields: Fields, what: str) -> str:
    """Return the id in `project`, else the service's own; faults are noted. `what`: what of the project is
    meant, in the plural."""
    return _project(call, fields, f"Whose {what}? Give the project's id.")


def queried_project(call: JsonCall, what: str) -> str:
    """Return the project that the query names, else the service's own. Raises InvalidRequest."""
    fields = call.queried("project")
    project = read_project(call, fields, what)
    fields.refuse()
    return project


def read_place(call: JsonCall, fields: Fields, what: str) -> tuple[str, str]:
    """Return the project and region in `project` and `region`, else the service's own; faults are noted.
    `what`: as for `read_project`."""
    project = _project(call, fields, f"Which project's {what}? Give its id.")
    region = fields.text("region") or call.services.settings.region
    known = tuple(sorted({region for api in Api for region in regions(api)}))
    if not region:
        fields.fault("region", f"Which region's {what}? Give its name, such as us-central1.")
    elif region not in known:
        advice = near(region, known) or f" The regions are: {', '.join(known)}."
        fields.fault("region", f"{region!r} is not a region in which jobs run.{advice}")
    return project, region


def _project(call: JsonCall, fields: Fields, missing: str) -> str:
    project = fields.text("project") or call.services.settings.project
    if not project:
        fields.fault("project", missing)
        return ""
    try:
        return ProjectName.parse(f"projects/{project}", field="project").project_id
    except InvalidRequest:
        fields.fault("project", f"{project!r} is not a project id.")
        return ""
