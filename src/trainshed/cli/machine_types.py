"""`trainshed machine-types`: lists the machine types with the memory that a replica really gets
(spec/machines#memory), and how many nodes of a service are as large."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from trainshed.cli.connection import find, takes_address
from trainshed.cli.nodes import NodeView, list_nodes
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
@takes_address
@click.argument("name", required=False)
def command(
    *,
    form: str,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    name: str | None,
) -> None:
    """Show machine types and their memory. NAME: only those whose name begins with it.

    A replica gets a machine's memory without what the platform keeps for itself. Needs no service; with --url
    or --data, NODES is how many nodes of that service are as large.
    """
    machines = [
        machine for machine in machine_types().values() if machine.name.startswith(name or "")
    ]
    if not machines:
        raise click.ClickException(
            f"No machine type's name begins with {name!r}. All of them: trainshed machine-types"
        )
    nodes = list_nodes(find(url, token, data, ca).client()) if url or data else None
    if form == "json":
        print_data([_document(machine, nodes) for machine in machines])
        return
    columns = _COLUMNS if nodes is None else (*_COLUMNS, Column("NODES", right=True))
    rows = [
        _row(machine) if nodes is None else (*_row(machine), str(_as_large(machine, nodes)))
        for machine in machines
    ]
    for line in titled(columns, rows):
        click.echo(line)


def _as_large(machine: MachineType, nodes: Sequence[NodeView]) -> int:
    """Return how many of the nodes have as many vCPUs and as much memory as the machine, used or not."""
    return sum(
        node.vcpus >= machine.vcpus and node.memory_bytes >= machine.memory_bytes for node in nodes
    )


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


def _document(machine: MachineType, nodes: Sequence[NodeView] | None) -> dict[str, Any]:
    about = {} if nodes is None else {"nodes": _as_large(machine, nodes)}
    return about | {
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
