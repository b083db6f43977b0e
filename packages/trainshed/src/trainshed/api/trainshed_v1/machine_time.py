"""What projects and people have used: hours of machines, processors, memory and accelerators, and money."""

from collections.abc import Callable
from typing import Final

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import FilterError
from trainshed.api.trainshed_v1.call import Fields, JsonCall
from trainshed.api.trainshed_v1.places import read_project
from trainshed.core.units import Nanos
from trainshed.core.usage import MachineTime, Prices, month_of, uses
from trainshed.wire.trainshed_v1 import capacity as records

_ALL_PROJECTS: Final = "-"
_LABEL: Final = "labels."
_BY: Final[dict[str, Callable[[MachineTime], str]]] = {
    "user": lambda used: used.person,
    "project": lambda used: used.project_id,
    "machine": lambda used: " + ".join(filter(None, (used.machine, used.accelerator))),
}


async def list_(call: JsonCall) -> records.UsageReport:
    """`GET /trainshed/v1/usage?project=P[&by=B][&since=T][&until=T]`: return what attempts of jobs held
    between two moments, by default from the beginning of this month (UTC) until now; the most expensive
    first, then those with the most GPU-hours and CPU-hours.

    `by`: `user` (the default), `project`, `machine` or `labels.KEY`. `project=-`: in all projects.
    """
    fields = Fields({"project": call.parameter("project") or None})
    is_everywhere = fields.raw("project") == _ALL_PROJECTS
    project = None if is_everywhere else read_project(call, fields, "usage")
    by = call.parameter("by") or "user"
    if by not in _BY and not by.startswith(_LABEL):
        fields.fault("by", f"{by!r} is none of {', '.join(_BY)} and {_LABEL}KEY.")
    now = call.services.now()
    until = _moment(call, fields, "until", now)
    since = _moment(call, fields, "since", month_of(now)[0])
    if since > until:
        fields.fault("since", "It is later than `until`.")
    fields.refuse()
    used = await _used(call, project, since, min(until, now))
    rows = _rows(used, _key(by), call.services.settings.prices)
    return records.UsageReport(
        project=_ALL_PROJECTS if project is None else project,
        by=by,
        since=text_micros(since),
        until=text_micros(min(until, now)),
        rows=rows,
    )


def _key(by: str) -> Callable[[MachineTime], str]:
    label = by.removeprefix(_LABEL)
    return _BY.get(by) or (lambda used: dict(used.labels).get(label, ""))


def _moment(call: JsonCall, fields: Fields, name: str, default: Nanos) -> Nanos:
    text = call.parameter(name)
    try:
        return moment(text) if text else default
    except FilterError as error:
        fields.fault(name, str(error))
        return default


async def _used(
    call: JsonCall, project: str | None, since: Nanos, until: Nanos
) -> tuple[MachineTime, ...]:
    """Return what was used, by attempts that are over and by those that go on."""
    capacity, reader = call.services.capacity, call.services.reader
    while True:
        holding = capacity.holding()
        ended = await reader.machine_time(project, since, until)
        # What is given back meanwhile must be counted once.
        after = {(job.uid, job.placed) for job in capacity.holding()}
        if all((job.uid, job.placed) in after for job in holding):
            break
    running = (
        use.within(since, until)
        for job in holding
        if project in (None, job.name.project_id)
        for use in uses(job, until)
    )
    return (*ended, *running)


def _rows(
    used: tuple[MachineTime, ...], key: Callable[[MachineTime], str], prices: Prices
) -> tuple[records.UsageRow, ...]:
    sums: dict[str, records.UsageRow] = {}
    for part in used:
        name = key(part)
        row = sums.get(name, records.UsageRow(name=name))
        sums[name] = records.UsageRow(
            name=name,
            gpu_hours=row.gpu_hours + part.gpu_hours,
            cpu_hours=row.cpu_hours + part.cpu_hours,
            gigabyte_hours=row.gigabyte_hours + part.gigabyte_hours,
            machine_hours=row.machine_hours + part.machine_hours,
            cost=row.cost + prices.cost(part),
        )
    rows = (row for row in sums.values() if row.machine_hours)
    return tuple(sorted(rows, key=lambda row: (-row.cost, -row.gpu_hours, -row.cpu_hours)))
