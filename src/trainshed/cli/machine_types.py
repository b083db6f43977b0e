"""`trainshed machine-types`: the machine types with the memory that a replica really gets
(spec/machines#memory)."""

from typing import Any

import click

from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import Column, titled
from trainshed.core.catalog.accelerators import allowed
from trainshed.core.catalog.machines import MachineType, machine_types
from trainshed.core.names import Api

_COLUMNS = (
    Column("MACHINE TYPE"),
    Column("VCPUS", right=True),
    Column("MEMORY", right=True),
    Column("A REPLICA GETS", right=True),
    Column("APIS"),
    Column("ACCELERATORS"),
)


@click.command()
@output_format("table", "Output as a table, or JSON for programs (bytes).")
@click.argument("name", required=False)
def command(form: str, name: str | None) -> None:
    """Show machine types and their memory. NAME: only those whose name begins with it.

    A replica gets a machine's memory without what the platform keeps for itself.
    """
    machines = [
        machine for machine in machine_types().values() if machine.name.startswith(name or "")
    ]
    if not machines:
        raise click.ClickException(
            f"No machine type's name begins with {name!r}. All of them: trainshed machine-types"
        )
    if form == "json":
        print_data([_document(machine) for machine in machines])
        return
    for line in titled(_COLUMNS, [_row(machine) for machine in machines]):
        click.echo(line)


def _row(machine: MachineType) -> tuple[str, ...]:
    return (
        machine.name,
        f"{machine.vcpus:g}" if machine.vcpus else "–",
        gibibytes(machine.memory_bytes),
        gibibytes(machine.memory_limit_bytes),
        " ".join(sorted(api.value for api in machine.apis)) or "scale tiers",
        ", ".join(
            f"{_short(kind)} ×{'|'.join(map(str, counts))}"
            for kind, counts in _accelerators(machine).items()
        ),
    )


def _document(machine: MachineType) -> dict[str, Any]:
    return {
        "name": machine.name,
        "vcpus": machine.vcpus or None,
        "memoryBytes": machine.memory_bytes or None,
        "replicaMemoryBytes": machine.memory_limit_bytes or None,
        "apis": sorted(api.value for api in machine.apis),
        "accelerators": {kind: list(counts) for kind, counts in _accelerators(machine).items()},
    }


def _accelerators(machine: MachineType) -> dict[str, tuple[int, ...]]:
    if machine.accelerator_type:
        return {machine.accelerator_type: (machine.accelerator_count,)}
    types: dict[str, tuple[int, ...]] = {}
    for api in Api:
        if api in machine.apis:
            types.update(allowed(machine, api))
    return types


def _short(kind: str) -> str:
    return kind.removeprefix("NVIDIA_").removeprefix("TESLA_")
