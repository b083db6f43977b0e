"""One call of a method of `/trainshed/v1`: it takes a path, a query and perhaps a JSON body, and answers
records or lines of them."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from trainshed.access.principals import Principal
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Services
from trainshed.api.filters.matching import moment
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

    def sent(self, record: type[R]) -> tuple[R, Faults]:
        """Return the body as a record, and what is wrong with it so far; `Faults.refuse` must follow. Raises
        InvalidRequest for values of other types."""
        return read(self.body, record, record.__struct_encode_fields__)

    def parameter(self, name: str) -> str:
        """Return the last value of a query parameter; "" if it was not given."""
        values = self.query.get(name)
        return values[-1] if values else ""

    def number(self, name: str, default: Default) -> int | Default:
        """Return a parameter as a whole number, or the default if it was not given. Raises InvalidRequest."""
        text = self.parameter(name)
        if not text:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise InvalidRequest((Violation(name, f"{text!r} is not a whole number."),))
        return int(text)

    def moment(self, name: str, default: Default) -> Nanos | Default:
        """Return a parameter's time in ns since the epoch, or the default if it was not given. Raises
        InvalidRequest."""
        text = self.parameter(name)
        try:
            return Nanos(max(0, moment(text))) if text else default
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


def read(sent: Mapping[str, Any], record: type[R], names: Iterable[str]) -> tuple[R, Faults]:
    """Return a JSON object as a record, and what is wrong with it: fields besides `names`. A null means that
    a field is not given. Raises InvalidRequest for values of other types."""
    known, faults = tuple(names), Faults()
    for name in [name for name in sent if name not in known]:
        text = f"There is no such field here; there is: {', '.join(known) or 'none'}."
        faults.add(name, text + closest(name, known))
    try:
        made = msgspec.convert({n: v for n, v in sent.items() if v is not None}, record)
    except msgspec.ValidationError as wrong:
        text, _, path = str(wrong).partition(" - at `$.")
        faults.add(path.rstrip("`"), f"{text}.")
        raise InvalidRequest(faults.violations) from None
    return made, faults


JsonHandler = Callable[[JsonCall], Awaitable[Record]]
StreamHandler = Callable[[JsonCall], Awaitable[AsyncGenerator[bytes]]]
"""Raises what is wrong before the first line is requested; the lines are JSON, each with its line end."""


def project_fault(project: str) -> str:
    """Return what is wrong with a text that is no project ID, with an ID that is near to it."""
    near = re.sub(r"[^a-z0-9]+", "-", project.lower()).strip("-")[:30]
    example = f" Did you mean {near}?" if near and near != project else ""
    form = "It has letters, digits, '-', '.', ':' and '_', and no spaces."
    return f"{project!r} is not a project id. {form}{example}"


def read_project(call: JsonCall, project: str, faults: Faults) -> str:
    """Return a project's id, for "" the service's own; faults are noted."""
    project = project or call.services.settings.project
    try:
        return ProjectName.parse(f"projects/{project}", field="project").project_id
    except InvalidRequest:
        faults.add("project", project_fault(project))
        return ""


def queried_project(call: JsonCall) -> str:
    """Return the project that the query names, else the service's own. Raises InvalidRequest."""
    faults = Faults()
    project = read_project(call, call.parameter("project"), faults)
    faults.refuse()
    return project


def read_place(call: JsonCall, project: str, region: str, faults: Faults) -> tuple[str, str]:
    """Return a project and a region, for "" the service's own; faults are noted."""
    project = read_project(call, project, faults)
    region = region or call.services.settings.region
    known = tuple(sorted({region for api in Api for region in regions(api)}))
    if region not in known:
        advice = closest(region, known) or f" The regions are: {', '.join(known)}."
        faults.add("region", f"{region!r} is not a region in which jobs run.{advice}")
    return project, region


def queried_place(call: JsonCall) -> tuple[str, str]:
    """Return the project and region that the query names, else the service's own. Raises InvalidRequest."""
    faults = Faults()
    place = read_place(call, call.parameter("project"), call.parameter("region"), faults)
    faults.refuse()
    return place
