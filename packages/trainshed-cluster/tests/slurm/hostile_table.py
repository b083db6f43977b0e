"""The expected results of attacks on Slurm's nodes, in the order of `attacks.IDENTITIES`, which docs/slurm.md
numbers as setups. test_hostile.py tests this table, and docs/slurm.md shows it."""

from tests.e2e.hostile import table
from tests.e2e.hostile.table import EVERYWHERE, HELD, NAMESPACED, NOWHERE, OPEN, VARIES, Outcome, Row

__all__ = ["BEGIN", "END", "HELD", "ROWS", "VARIES", "documented_table"]

BEGIN = "<!-- generated from packages/trainshed-cluster/tests/slurm/hostile_table.py -->"
END = "<!-- end of generated text -->"

_HERE: dict[str, tuple[Outcome, Outcome, Outcome, Outcome, Outcome]] = {
    "service files": NAMESPACED,
    "files of other jobs": NAMESPACED,
    "what other jobs run in": NAMESPACED,
    "home": NAMESPACED,
    "mounts": NAMESPACED,
    "links for a restart": EVERYWHERE,
    "links in buckets": EVERYWHERE,
    # With separate users for projects, these files belong to another user.
    "elsewhere": (HELD, HELD, HELD, OPEN, OPEN),
    "machine": EVERYWHERE,
    "disks": EVERYWHERE,
    "set-user bits": EVERYWHERE,
    "daemons": (HELD, HELD, HELD, HELD, VARIES),
    "processes": NAMESPACED,
    "signals": NAMESPACED,
    "spying": (HELD, HELD, HELD, HELD, VARIES),
    "processes without end": NAMESPACED,
    "own limits": EVERYWHERE,
    "bucket directory": NAMESPACED,
    "bucket, own endpoint": EVERYWHERE,
    "bucket, ports": EVERYWHERE,
    "bucket, other endpoint": EVERYWHERE,
    "staged packages": EVERYWHERE,
    "API without a token": EVERYWHERE,
    "API with its token": EVERYWHERE,
    "forged tokens": EVERYWHERE,
    "loopback": NOWHERE,
    "addresses": (HELD, HELD, HELD, HELD, VARIES),
    "abstract sockets": NOWHERE,
}
"""Attacks of all engines, with their results on nodes."""

ROWS: tuple[Row, ...] = (
    *(Row(row.attempt, row.what, _HERE[row.attempt]) for row in table.ROWS if row.attempt in _HERE),
    Row("munge", "reading munge's key or using its socket, which authenticate users to Slurm", NAMESPACED),
    Row(
        "Slurm's commands",
        "using Slurm's commands to list or end other allocations, run steps, submit jobs, or drain the node",
        NAMESPACED,
    ),
    Row("Slurm's ports", "connecting to the ports of `slurmctld` and `slurmd`", NOWHERE),
    Row("unsigned messages", "getting responses from Slurm's daemons without munge", EVERYWHERE),
    Row("steps", "reading sockets and credentials of Slurm's steps (`SlurmdSpoolDir`)", NAMESPACED),
    Row("steps, asked", "querying a step through its socket, as `scontrol listpids` does", NAMESPACED),
    Row("agent's files", "reading keys, logs and replica slots in agents' directories", NAMESPACED),
    Row(
        "agent's sockets",
        "connecting to the sockets of agents and shims, which lead to the service, shells and the zygote",
        NAMESPACED,
    ),
    Row("agent's abstract sockets", "connecting to abstract sockets of agents and shims", EVERYWHERE),
    Row("as its agent", "acting as an agent without its key", EVERYWHERE),
    Row(
        "kernel",
        "changing the node's kernel: its settings, modules, memory, `sysrq`, `release_agent`",
        # Device permissions depend on the node's administrator. /dev/fuse is usually open to all users.
        (HELD, HELD, HELD, HELD, VARIES),
    ),
    Row(
        "control groups",
        "leaving the control groups of its replica and allocation, or mounting its own",
        EVERYWHERE,
    ),
    Row("wire", "capturing or forging network packets", EVERYWHERE),
    Row("namespaces", "entering the namespaces of the agent and of Slurm's daemons", EVERYWHERE),
    Row(
        "daemons' memory",
        "reading memory, environment and file descriptors of the agent and of Slurm's daemons",
        NAMESPACED,
    ),
)


def documented_table() -> str:
    """Return the part of the page: the attacks that are not prevented everywhere, by result."""
    lines: list[str] = []
    for says in dict.fromkeys(row.says for row in ROWS if row.says != EVERYWHERE):
        lines.append(f"- **{_describe(says)}**:")
        lines += [f"  - {row.what}" for row in ROWS if row.says == says]
    lines.append(f"- **{_describe(EVERYWHERE)}**: all other attempts.")
    return f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}\n"


def _describe(says: tuple[Outcome, ...]) -> str:
    if len(set(says)) == 1:
        return f"{str(says[0]).capitalize()} in all setups"
    other = (
        f"{word} in setup{'s' * (len(numbers) > 1)} {' and '.join(numbers)}"
        for word in (OPEN, VARIES)
        if (numbers := [str(number) for number, how in enumerate(says, 1) if how is word])
    )
    return f"{' and '.join(other).capitalize()}, otherwise held"
