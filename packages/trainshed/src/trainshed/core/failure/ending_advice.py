"""Advice on how a program ended: the signal behind an exit status, and the memory that it may use. Pure."""

import re
from typing import Final

from trainshed.core.catalog.machines import GIB, MachineType, machine_types
from trainshed.core.job import JobSpec, WorkerPool

_SEGV, _KILL = 11, 9
_CRASHES: Final = {
    4: "SIGILL (an instruction that this processor lacks)",
    6: "SIGABRT (the program aborted itself)",
    7: "SIGBUS (memory that is not there, as on a full /dev/shm)",
    8: "SIGFPE (an arithmetic error in native code)",
    _SEGV: "SIGSEGV (a segmentation fault in native code)",
}
_NEGATIVE: Final = {256 - number: number for number in (6, _KILL, _SEGV)}
"""Statuses of programs that exit with the return code that Python's subprocess reports for a signal, such as
-11."""
_DUMPED: Final = re.compile(r"Fatal Python error|Current thread 0x")
"""The lines of Python's fault handler."""
_TRACED: Final = (
    "Set the variable PYTHONFAULTHANDLER=1 (env of the job): then Python prints where it was when "
    "the signal came."
)


def on_signal(tail: str, status: int, *, is_signal: bool) -> str | None:
    """Return what an exit status says of a signal, and how to find its cause; None if it stands for none.
    `is_signal`: the status is a bare signal number."""
    number = status if is_signal and status < 128 else status - 128 if 128 < status < 160 else 0
    number = number or _NEGATIVE.get(status, 0)
    meant = f"Status {status} stands for a signal: "
    if number == _KILL:
        return (
            f"{meant}SIGKILL ended a process of the program, and it was not the memory limit of "
            f"the replica. A "
            "launcher or the program itself sent it, or the machine ran out of memory. trainshed "
            "describe usage shows the memory of each replica."
        )
    if number not in _CRASHES:
        return None
    return f"{meant}{_CRASHES[number]}." + ("" if _DUMPED.search(tail) else f" {_TRACED}")


def on_memory(spec: JobSpec, pool: int) -> str:
    """Return how much memory a replica of the pool may use, and the next machine type with more."""
    machine = spec.pool(pool).machine
    text = (
        f"A replica on {machine.type or 'this machine'} may use "
        f"{_gib(machine.memory_limit_bytes)} (less if this "
        "machine has less), and its processes together reached that."
    )
    if larger := _next_larger(spec.pool(pool)):
        text += f" The next larger machine type: {larger.name}, {_gib(larger.memory_limit_bytes)}."
    return (
        f"{text} trainshed describe usage shows the memory over time. Smaller batches, fewer "
        f"DataLoader workers, "
        "or reading data in parts need less."
    )


def _next_larger(pool: WorkerPool) -> MachineType | None:
    """Return the machine type with more memory that is nearest to the pool's, of the same series if there is
    one."""
    types = machine_types()
    own = types.get(pool.machine.type)
    if own is None:
        return None
    larger = [
        kind
        for kind in types.values()
        if kind.memory_limit_bytes > own.memory_limit_bytes
        and own.apis <= kind.apis
        and kind.needs_accelerators == own.needs_accelerators
        and kind.is_legacy == own.is_legacy
        and kind.vcpus >= own.vcpus
    ]
    series = own.name.partition("-")[0]
    return min(
        larger,
        key=lambda kind: (
            kind.name.partition("-")[0] != series,
            kind.memory_limit_bytes,
            kind.vcpus,
        ),
        default=None,
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
