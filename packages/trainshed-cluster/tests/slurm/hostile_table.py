"""What is held on Slurm's nodes for which identity: the one table that the hostile programs are measured by
there, and that docs/slurm.md shows."""

from tests.e2e.hostile import table
from tests.e2e.hostile.table import EVERYWHERE, HELD, NAMESPACED, NOWHERE, OPEN, VARIES, Row, Says
from tests.slurm.siege import IDENTITIES

__all__ = ["BEGIN", "END", "HELD", "ROWS", "VARIES", "shown"]

BEGIN = "<!-- made from packages/trainshed-cluster/tests/slurm/hostile_table.py -->"
END = "<!-- end of what is made -->"

_HERE: dict[str, tuple[Says, Says, Says, Says, Says]] = {
    "service files": NAMESPACED,
    "files of other jobs": NAMESPACED,
    "what other jobs run in": NAMESPACED,
    "home": NAMESPACED,
    "mounts": NAMESPACED,
    "links for a restart": EVERYWHERE,
    "links in buckets": EVERYWHERE,
    # It is another user whose files these are, where projects have users of their own.
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
"""What is tried everywhere, as it comes out on nodes."""

ROWS: tuple[Row, ...] = (
    *(Row(row.attempt, row.what, _HERE[row.attempt]) for row in table.ROWS if row.attempt in _HERE),
    Row("munge", "munge's socket and key, by which Slurm is told who somebody is", NAMESPACED),
    Row(
        "Slurm's commands",
        "Slurm's commands: to see or end other allocations, run steps in them, submit, drain the node",
        NAMESPACED,
    ),
    Row("Slurm's ports", "to connect to the ports of `slurmctld` and `slurmd`", NOWHERE),
    Row("unsigned messages", "to be answered by Slurm's daemons without munge", EVERYWHERE),
    Row("steps", "sockets and credentials of Slurm's steps (`SlurmdSpoolDir`)", NAMESPACED),
    Row("steps, asked", "to ask a step on its socket, as `scontrol listpids` does", NAMESPACED),
    Row(
        "agent's files", "keys, logs and slots in its own and other agents' directories", NAMESPACED
    ),
    Row(
        "agent's sockets",
        "the sockets of agents and shims: the ways to the service, to shells, to the zygote",
        NAMESPACED,
    ),
    Row("agent's abstract sockets", "such sockets of ours with names in no directory", EVERYWHERE),
    Row("as its agent", "to be heard by the service as an agent, without its key", EVERYWHERE),
    Row(
        "kernel",
        "the node's kernel: its settings, modules, memory, `sysrq`, `release_agent`",
        # There the node's devices are as its administrator has them: /dev/fuse is most often everybody's.
        (HELD, HELD, HELD, HELD, VARIES),
    ),
    Row(
        "control groups",
        "to leave the control groups of its replica and allocation, or mount its own",
        EVERYWHERE,
    ),
    Row("wire", "to read others' packets, or make some by hand", EVERYWHERE),
    Row("namespaces", "to enter the namespaces of the agent and of Slurm's daemons", EVERYWHERE),
    Row(
        "daemons' memory",
        "memory, environment and handles of the agent and of Slurm's daemons",
        NAMESPACED,
    ),
)


def shown() -> str:
    """What the page says: the attempts that are not held everywhere, by what becomes of them."""
    lines: list[str] = []
    for says in dict.fromkeys(row.says for row in ROWS if row.says != EVERYWHERE):
        attempts = "; ".join(row.what for row in ROWS if row.says == says)
        lines.append(f"- **{_in_words(says)}**: {attempts}.")
    lines.append(f"- **{_in_words(EVERYWHERE)}**: all else that is tried.")
    return f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}\n"


def _in_words(says: tuple[Says, ...]) -> str:
    if len(set(says)) == 1:
        return f"{says[0]} for every identity"
    other = (
        f"{word} where {' or '.join(titles)}"
        for word in (OPEN, VARIES)
        if (titles := [who.title for who, how in zip(IDENTITIES, says, strict=True) if how is word])
    )
    return f"held, but {' and '.join(other)}"
