"""A call of a method of `/trainshed/v1`. It has a path, a query and an optional JSON body. The response is a
record or a stream of JSON lines."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from trainshed.access.principals import Principal
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Services
from trainshed.api.filters.matching import parse_time
from trainshed.api.filters.syntax import FilterError
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import InvalidRequest, Violation, closest
from trainshed.core.names import Api
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import Nothing, Record

R = TypeVar("R", bound=Struct)
Default = TypeVar("Default")


class JsonCall(Struct, frozen=True):
    """A call of a method of `/trainshed/v1`, with the readers of its parameters."""

    principal: Principal
    services: Services
    #: The decoded name in the path, such as the name of a job or node; "" if the path contains no name.
    target: str
    #: Values of the query parameters by name.
    query: Mapping[str, Sequence[str]]
    #: The JSON object in the body. It is empty if there is no body.
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: The record type of the body.
    record: type[Record] = Nothing

    def read_body(self, record: type[R]) -> tuple[R, Faults]:
        """Return the body as a record, and a collector with the errors that were found. After its own checks,
        the caller must call `Faults.refuse`, which raises all errors. Raises InvalidRequest for values with
        wrong types."""
        return read_record(self.body, record, record.__struct_encode_fields__)

    def parameter(self, name: str) -> str:
        """Return the last value of a query parameter, or "" if it is not set."""
        values = self.query.get(name)
        return values[-1] if values else ""

    def number(self, name: str, default: Default) -> int | Default:
        """Return a parameter as a whole number, or the default if it is not set. Raises InvalidRequest."""
        text = self.parameter(name)
        if not text:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise InvalidRequest(
                (Violation(name, f"{text!r} is not a whole number. Use a number such as 10."),)
            )
        return int(text)

    def moment(self, name: str, default: Default) -> Nanos | Default:
        """Return a parameter as a time in ns since the epoch, or the default if it is not set. Raises
        InvalidRequest."""
        text = self.parameter(name)
        try:
            return Nanos(max(0, parse_time(text))) if text else default
        except FilterError as wrong:
            raise InvalidRequest((Violation(name, str(wrong)),)) from None

    def flag(self, name: str) -> bool:
        """Whether the parameter is `true`, `1` or has no value. Raises InvalidRequest."""
        if name not in self.query:
            return False
        text = self.parameter(name).lower()
        if text in ("", "true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise InvalidRequest((Violation(name, f"{text!r} is not a valid value. Use true or false."),))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a parameter. It may be repeated, and each value may be a comma-separated
        list."""
        return tuple(part for value in self.query.get(name, ()) for part in value.split(",") if part)


def read_record(body: Mapping[str, Any], record: type[R], names: Iterable[str]) -> tuple[R, Faults]:
    """Return a JSON object as a record, and a collector with the errors for fields that are not in `names`. A
    field with the value null counts as absent. Raises InvalidRequest for values with wrong types."""
    known, faults = tuple(names), Faults()
    for name in [name for name in body if name not in known]:
        text = f"Unknown field. Use one of: {', '.join(known) or 'no fields'}."
        faults.add(name, text + closest(name, known))
    try:
        value = msgspec.convert({n: v for n, v in body.items() if v is not None}, record)
    except msgspec.ValidationError as wrong:
        text, _, path = str(wrong).partition(" - at `$.")
        faults.add(path.rstrip("`"), f"{text}.")
        raise InvalidRequest(faults.violations) from None
    return value, faults


JsonHandler = Callable[[JsonCall], Awaitable[Record]]
StreamHandler = Callable[[JsonCall], Awaitable[AsyncGenerator[bytes]]]
"""Returns the lines of a stream. Each line is JSON and ends with a line break. Raises errors of the request
before the first line."""


def project_fault(project: str) -> str:
    """Return the error for an invalid project ID. It suggests a similar valid ID."""
    similar = re.sub(r"[^a-z0-9]+", "-", project.lower()).strip("-")[:30]
    example = f" Did you mean {similar}?" if similar and similar != project else ""
    form = "Use letters, digits, '-', '.', ':' and '_', without spaces."
    return f"{project!r} is not a project ID. {form}{example}"


def read_project(call: JsonCall, project: str, faults: Faults) -> str:
    """Return a project's ID. The default for "" is the service's own project. Adds errors to `faults`."""
    project = project or call.services.settings.project
    try:
        return ProjectName.parse(f"projects/{project}", field="project").project_id
    except InvalidRequest:
        faults.add("project", project_fault(project))
        return ""


def queried_project(call: JsonCall) -> str:
    """Return the project in the query. The default is the service's own project. Raises InvalidRequest."""
    faults = Faults()
    project = read_project(call, call.parameter("project"), faults)
    faults.refuse()
    return project


def read_location(call: JsonCall, project: str, region: str, faults: Faults) -> tuple[str, str]:
    """Return a project and a region. If one of them is "", return the service's default instead. Adds errors
    to `faults`."""
    project = read_project(call, project, faults)
    region = region or call.services.settings.region
    known = tuple(sorted({region for api in Api for region in regions(api)}))
    if region not in known:
        advice = closest(region, known) or f" Use one of: {', '.join(known)}."
        faults.add("region", f"{region!r} is not a region of training jobs.{advice}")
    return project, region


def queried_location(call: JsonCall) -> tuple[str, str]:
    """Return the project and the region in the query. If one of them is not set, return the service's default
    instead. Raises InvalidRequest."""
    faults = Faults()
    location = read_location(call, call.parameter("project"), call.parameter("region"), faults)
    faults.refuse()
    return location
