"""What is held on Slurm's nodes for which identity: the one table that the hostile programs are measured by
there, and that docs/slurm.md shows."""

from dataclasses import dataclass

from tests.e2e.hostile import table
from tests.e2e.hostile.table import HELD, OPEN, VARIES, Says
from tests.slurm.siege import IDENTITIES

__all__ = ["BEGIN", "END", "HELD", "ROWS", "VARIES", "shown"]

BEGIN = "<!-- made from packages/trainshed-cluster/tests/slurm/hostile_table.py -->"
END = "<!-- end of what is made -->"


@dataclass(frozen=True, slots=True)
class Row:
    """`attempt`: the attackers' name for it. `says`: in the order of `IDENTITIES`."""

    attempt: str
    what: str
    says: tuple[Says, Says, Says, Says, Says]


_EVERYWHERE = (HELD, HELD, HELD, HELD, HELD)
_NOWHERE = (OPEN, OPEN, OPEN, OPEN, OPEN)
_NAMESPACED = (HELD, HELD, HELD, HELD, OPEN)
"""Where there is a view of its own."""
_HERE: dict[str, tuple[Says, Says, Says, Says, Says]] = {
    "service files": _NAMESPACED,
    "files of other jobs": _NAMESPACED,
    "what other jobs run in": _NAMESPACED,
    "home": _NAMESPACED,
    "mounts": _NAMESPACED,
    "links for a restart": _EVERYWHERE,
    "links in buckets": _EVERYWHERE,
    # It is another user whose files these are, where projects have users of their own.
    "elsewhere": (HELD, HELD, HELD, OPEN, OPEN),
    "machine": _EVERYWHERE,
    "disks": _EVERYWHERE,
    "set-user bits": _EVERYWHERE,
    "daemons": (HELD, HELD, HELD, HELD, VARIES),
    "processes": _NAMESPACED,
    "signals": _NAMESPACED,
    "spying": (HELD, HELD, HELD, HELD, VARIES),
    "processes without end": _NAMESPACED,
    "own limits": _EVERYWHERE,
    "bucket directory": _NAMESPACED,
    "bucket, own endpoint": _EVERYWHERE,
    "bucket, ports": _EVERYWHERE,
    "bucket, other endpoint": _EVERYWHERE,
    "staged packages": _EVERYWHERE,
    "API without a token": _EVERYWHERE,
    "API with its token": _EVERYWHERE,
    "forged tokens": _EVERYWHERE,
    "loopback": _NOWHERE,
    "addresses": (HELD, HELD, HELD, HELD, VARIES),
    "abstract sockets": _NOWHERE,
}
"""What is tried everywhere, as it comes out on nodes."""

ROWS: tuple[Row, ...] = (
    *(Row(row.attempt, row.what, _HERE[row.attempt]) for row in table.ROWS if row.attempt in _HERE),
    Row("munge", "munge's socket and key, by which Slurm is told who somebody is", _NAMESPACED),
    Row(
        "Slurm's commands",
        "Slurm's commands: to see or end other allocations, run steps in them, submit, drain the node",
        _NAMESPACED,
    ),
    Row("Slurm's ports", "to connect to the ports of `slurmctld` and `slurmd`", _NOWHERE),
    Row("unsigned messages", "to be answered by Slurm's daemons without munge", _EVERYWHERE),
    Row("steps", "sockets and credentials of Slurm's steps (`SlurmdSpoolDir`)", _NAMESPACED),
    Row("steps, asked", "to ask a step on its socket, as `scontrol listpids` does", _NAMESPACED),
    Row(
        "agent's files",
        "keys, logs and slots in its own and other agents' directories",
        _NAMESPACED,
    ),
    Row(
        "agent's sockets",
        "the sockets of agents and shims: the ways to the service, to shells, to the zygote",
        _NAMESPACED,
    ),
    Row("agent's abstract sockets", "such sockets of ours with names in no directory", _EVERYWHERE),
    Row("as its agent", "to be heard by the service as an agent, without its key", _EVERYWHERE),
    Row(
        "kernel",
        "the node's kernel: its settings, modules, memory, `sysrq`, `release_agent`",
        # There the node's devices are as its administrator has them: /dev/fuse is most often everybody's.
        (HELD, HELD, HELD, HELD, VARIES),
    ),
    Row(
        "control groups",
        "to leave the control groups of its replica and allocation, or mount its own",
        _EVERYWHERE,
    ),
    Row("wire", "to read others' packets, or make some by hand", _EVERYWHERE),
    Row("namespaces", "to enter the namespaces of the agent and of Slurm's daemons", _EVERYWHERE),
    Row(
        "daemons' memory",
        "memory, environment and handles of the agent and of Slurm's daemons",
        _NAMESPACED,
    ),
)


def shown() -> str:
    """What the page says: the attempts that are not held everywhere, by what becomes of them."""
    lines: list[str] = []
    for says in dict.fromkeys(row.says for row in ROWS if row.says != _EVERYWHERE):
        attempts = "; ".join(row.what for row in ROWS if row.says == says)
        lines.append(f"- **{_in_words(says)}**: {attempts}.")
    lines.append(f"- **{_in_words(_EVERYWHERE)}**: all else that is tried.")
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
