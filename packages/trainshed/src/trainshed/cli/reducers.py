"""`trainshed reducers`: computes how many reducers a job needs, and writes the wheel for users' own images
(spec/reduction#bandwidth)."""

import re
from pathlib import Path

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.groups import Group
from trainshed.cli.no_service import refuses_service
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.reducer_plan import plan, plan_document, plan_lines
from trainshed.core.catalog import accelerators
from trainshed.core.catalog.machines import MachineType, closest, egress_with
from trainshed.core.job.spec import Accelerators
from trainshed.core.names import Api
from trainshed.core.reducers import MACHINE, Fleet
from trainshed.core.specs.machines import (
    MAX_REPLICAS,
    accelerator_faults,
    machine_named,
    unknown_machine,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_ACCELERATOR = "'--accelerator'"
_needs_no_service = refuses_service(
    "It follows from the machine table alone; what a service has for a job: trainshed explain."
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def _gbps(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse a bandwidth in Gbit/s. Raises click.BadParameter if it is none, or implausible."""
    if value is None:
        return None
    try:
        gbps = float(value)
    except ValueError:
        gbps = 0.0
    if not 0.001 <= gbps <= 100_000:
        raise click.BadParameter(f"{value!r} is not a number of Gbps such as 100.")
    return gbps


@click.group(cls=Group)
def command() -> None:
    """Plan a job's reducers (worker pool 2 with a reduction-server image). Needs no service.

    What they are, and when they help: docs/reduction-server.md. Which frameworks can use them: trainshed list
    reducer-support.
    """


@command.command("plan")
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_REPLICAS + 1),
    required=True,
    metavar="N",
    help="Training machines: worker pools 0 and 1 together.",
)
@click.option("--machine", metavar="TYPE", required=True, help="Machine type of the workers.")
@click.option(
    "--accelerator",
    metavar="type=TYPE,count=N",
    help="Accelerators of each worker, if its machine type leaves a choice.",
)
@click.option(
    "--reducer-machine",
    metavar="TYPE",
    default=MACHINE,
    show_default=True,
    help="Machine type of the reducers.",
)
@click.option(
    "--reducers",
    type=click.IntRange(1, MAX_REPLICAS),
    metavar="N",
    help="Number of reducers to judge. Default: as many as needed.",
)
@click.option(
    "--gradients", metavar="SIZE", help="Gradients of a step, such as 1.3GB: computes its time."
)
@click.option(
    "--worker-gbps",
    callback=_gbps,
    metavar="GBPS",
    help="Bandwidth of each worker. Default: from the machine type.",
)
@click.option(
    "--reducer-gbps",
    callback=_gbps,
    metavar="GBPS",
    help="Bandwidth of each reducer. Default: from the machine type.",
)
@_needs_no_service
@takes_form
def plan_(
    *,
    workers: int,
    machine: str,
    accelerator: str | None,
    reducer_machine: str,
    reducers: int | None,
    gradients: str | None,
    worker_gbps: float | None,
    reducer_gbps: float | None,
    form: str,
) -> None:
    """Compute how many reducers a job needs, and their effect.

    The rule: all reducers together have the bandwidth of all workers. 8 workers are 1 replica in worker pool
    0 and 7 in pool 1. Times are the least that the links allow.
    """
    if workers == 1:
        raise click.BadParameter(
            "A single machine has nothing to reduce; reducers pay from 3 on.",
            param_hint="'--workers'",
        )
    trains = _machine(machine, "'--machine'")
    devices = _devices(trains, accelerator)
    if worker_gbps is None:
        kind, number = (devices.type, devices.count) if devices else ("", 0)
        worker_gbps = _known(egress_with(trains, kind, number), trains, devices, "worker")
    reduces = _machine(reducer_machine, "'--reducer-machine'")
    if reduces.needs_accelerators:
        raise click.BadParameter(
            f"{reduces.name} comes with accelerators, which reducers do not use; choose a CPU machine, "
            f"such as {MACHINE}.",
            param_hint="'--reducer-machine'",
        )
    if reducer_gbps is None:
        reducer_gbps = _known(reduces.egress_gbps, reduces, None, "reducer")
    size = _size(gradients) if gradients is not None else None
    fleets = plan(
        Fleet(workers, trains.name, worker_gbps),
        devices,
        machine=reduces.name,
        gbps=reducer_gbps,
        vcpus=reduces.vcpus,
        count=reducers,
    )
    if form == "json":
        print_data(plan_document(fleets, size))
        return
    for line in plan_lines(fleets, size):
        click.echo(line)


@command.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIRECTORY",
    help="Directory for the wheel. Default: the current one.",
)
@_needs_no_service
@takes_actions
def wheel(output: Path, actions: Actions) -> None:
    """Write the wheel for your own container images.

    Jobs in prebuilt images have it by themselves.
    """
    from trainshed.runtimes import (
        reduction_distribution as distribution,  # no other command here needs it
    )

    path = output / distribution.wheel_name()
    try:
        output.mkdir(parents=True, exist_ok=True)
        path.write_bytes(distribution.wheel())
    except OSError as failure:
        raise click.ClickException(f"{path} cannot be written: {failure.strerror}") from None
    actions.did("file", str(path), "written", str(path))


def _machine(name: str, flag: str) -> MachineType:
    machine = machine_named(name, Api.VERTEX)
    if machine is None:
        raise click.BadParameter(unknown_machine(name, Api.VERTEX), param_hint=flag)
    return machine


def _devices(machine: MachineType, flag: str | None) -> Accelerators | None:
    """Return the accelerators that --accelerator names, else those that the machine type always has; None =
    none. Raises click.BadParameter."""
    if flag is None:
        choices = accelerators.allowed(machine, Api.VERTEX)
        if machine.needs_accelerators and len(choices) == 1:
            ((kind, counts),) = choices.items()
            return Accelerators(kind, counts[0])
        return None
    values: dict[str, str] = {}
    for part in flag.split(","):
        name, _, value = part.strip().partition("=")
        values[name] = value
    count = values.get("count", "1")
    if not values.get("type") or set(values) - {"type", "count"} or not count.isdecimal():
        raise click.BadParameter(
            f"{flag!r} is not like type=NVIDIA_TESLA_V100,count=8.", param_hint=_ACCELERATOR
        )
    kind = values["type"].upper().replace("-", "_")
    wrong_kind, wrong_count = accelerator_faults(machine, kind, int(count), Api.VERTEX)
    if wrong_kind:
        near = closest(kind, accelerators.allowed(machine, Api.VERTEX))
        raise click.BadParameter(f"{wrong_kind}{near}", param_hint=_ACCELERATOR)
    if wrong_count:
        raise click.BadParameter(wrong_count, param_hint=_ACCELERATOR)
    return Accelerators(kind, int(count))


def _known(
    gbps: float | None, machine: MachineType, devices: Accelerators | None, role: str
) -> float:
    if gbps is not None:
        return gbps
    machine_text = machine.name + (f" with {devices.count} × {devices.type}" if devices else "")
    flag = "'--machine'" if role == "worker" else "'--reducer-machine'"
    raise click.BadParameter(
        f"The bandwidth of {machine_text} is not in the machine table; give it with --{role}-gbps.",
        param_hint=flag,
    )


def _size(text: str) -> int:
    """Convert `1.3GB`, `500 MiB` or a whole number to bytes. Raises click.BadParameter."""
    match = _SIZE.fullmatch(text.strip())
    size = 0
    # A fraction without a unit is refused: probably the unit was forgotten.
    if match and (match[2] or "." not in match[1]):
        base = 1024 if match[3] else 1000
        size = round(float(match[1]) * base ** _POWERS[match[2].lower()])
    if size < 1:
        raise click.BadParameter(
            f"{text!r} is not a size such as 1.3GB.", param_hint="'--gradients'"
        )
    return size
