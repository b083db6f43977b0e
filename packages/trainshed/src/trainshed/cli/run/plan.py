"""Makes the lines that `trainshed run` prints before it submits a job: what runs where, when, and what it may
use. Pure."""

from collections.abc import Iterator, Sequence

import click
from msgspec.structs import replace

from trainshed.cli.jobs.describe import waiting_lines
from trainshed.cli.jobs.explain import TOO_LARGE
from trainshed.cli.run.program import Program
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import first_few, pairs
from trainshed.core.capacity import WaitReason
from trainshed.wire.trainshed_v1.capacity import Explanation, PoolMachine

_SHOWN = 6
"""Maximum files, requirements and nodes that are named."""


def plan_lines(
    answer: Explanation, runs: str, program: Program | None, output: str, shared: str = ""
) -> Iterator[str]:
    """Yield the lines of a plan. `answer`: the service's explanation of the job; `runs`: what is run on which
    image; `output`: the output directory; `shared`: the notice for a job that asks for more than there is, ""
    = none."""
    facts = [("Runs", runs)]
    if program and program.files:
        facts.append(("Files", first_few(program.files, _SHOWN)))
    if program and program.requirements:
        source = f"  (of {program.requirements_file})" if program.requirements_file else ""
        facts.append(("Installs", first_few(program.requirements, _SHOWN) + faint(source)))
    facts.append(("Machines", "\n".join(map(_machine, answer.machines))))
    if len(answer.machines) > 1 or any(machine.replicas > 1 for machine in answer.machines):
        facts.append(("May use", _total(answer.machines)))
    facts.append(("Starts", "\n".join(_start(answer))))
    if output:
        facts.append(("Output", output))
    yield from pairs([(label, value) for label, value in facts if value])
    yield from (faint(f"notice: {text}") for text in (*answer.notices, shared) if text)
    yield from (click.style(f"warning: {text}", fg="yellow") for text in answer.warnings)


def _start(answer: Explanation) -> Iterator[str]:
    waiting = answer.waiting
    if waiting is None:
        nodes = dict.fromkeys(place.node for place in answer.places)
        where = f" on {first_few([*nodes], _SHOWN)}" if nodes else ""
        yield click.style("now", fg="green") + where
        return
    stock_out = waiting.reason == WaitReason.STOCK_OUT
    word, colour = ("never here", "red") if stock_out else ("waits", "yellow")
    first, *more = waiting_lines(replace(waiting, position=0) if stock_out else waiting)
    yield f"{click.style(word, fg=colour)}: {first}"
    yield from more
    if stock_out and not waiting.hint:
        yield TOO_LARGE


def _machine(machine: PoolMachine) -> str:
    devices = machine.accelerators
    parts = [
        *([f"{machine.vcpus:g} CPUs"] if machine.vcpus else []),
        *([gibibytes(machine.memory_limit_bytes)] if machine.memory_limit_bytes else []),
        *([f"{devices.count} × {devices.type}"] if devices else []),
    ]
    text = f"{machine.replicas} × {machine.machine_type or 'any machine'}"
    about = f"{machine.pool}: {', '.join(parts)}"
    return f"{text}  {faint(about)}"


def _total(machines: Sequence[PoolMachine]) -> str:
    cpus = sum(machine.vcpus * machine.replicas for machine in machines)
    memory = sum(machine.memory_limit_bytes * machine.replicas for machine in machines)
    devices = sum(
        machine.accelerators.count * machine.replicas
        for machine in machines
        if machine.accelerators
    )
    parts = [f"{cpus:g} CPUs", gibibytes(memory)]
    return ", ".join([*parts, f"{devices} accelerators"] if devices else parts)
