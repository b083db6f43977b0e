"""What is held at which level: the one table that the hostile programs are measured by, and that
docs/security.md shows."""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

BEGIN = "<!-- made from tests/e2e/hostile/table.py -->"
END = "<!-- end of what is made -->"


class Says(StrEnum):
    HELD = "held"
    OPEN = "open"
    #: On the machine; nothing is promised.
    VARIES = "depends"


HELD, OPEN, VARIES = Says.HELD, Says.OPEN, Says.VARIES


@dataclass(frozen=True, slots=True)
class Column:
    """A level, and as whom the service runs that has it."""

    title: str
    level: str
    as_root: bool

    @property
    def name(self) -> str:
        return f"{self.level} of a service of {'root' if self.as_root else 'a user'}"


COLUMNS = (
    Column("`own-user`", "own-user", as_root=True),
    Column("`user`", "user", as_root=False),
    Column("`root`", "root", as_root=True),
    Column("`user`, demanded of a service that is root", "user", as_root=True),
    Column("`session`", "session", as_root=False),
)


@dataclass(frozen=True, slots=True)
class Row:
    """`attempt`: the attacker's name for it. `says`: in the order of its table's columns."""

    attempt: str
    what: str
    says: tuple[Says, Says, Says, Says, Says]

    def expected(self, column: Column) -> Says:
        return self.says[COLUMNS.index(column)]


def strongest() -> tuple[Column, ...]:
    """What a service of whoever runs these tests has. Those of others, and what an operator asks for or a
    bare machine gives, are attacked by `./dev test-all`; programs at the last are in tests/contract/replica,
    those of an ordinary user's service in tests/engines/test_conformance.py."""
    return COLUMNS[:1] if os.geteuid() == 0 else COLUMNS[1:2]


def columns() -> list[Any]:
    """For a fixture: one service for each column, those of others as soaks."""
    return [
        pytest.param(
            column, marks=[] if column in strongest() else [pytest.mark.soak], id=column.name
        )
        for column in COLUMNS
    ]


EVERYWHERE = (HELD, HELD, HELD, HELD, HELD)
NOWHERE = (OPEN, OPEN, OPEN, OPEN, OPEN)
NAMESPACED = (HELD, HELD, HELD, HELD, OPEN)
"""Where there is a view of its own."""
_UNDONE = (HELD, HELD, OPEN, HELD, OPEN)
"""Where the view cannot be undone."""
_ROOT = (HELD, HELD, OPEN, OPEN, HELD)
"""What only the machine's root may."""

ROWS = (
    Row(
        "service files",
        "the service's database, tokens, keys, certificates' keys and sockets, by their paths",
        NAMESPACED,
    ),
    Row(
        "files of other jobs",
        "other jobs' working directories, logs, and what failed ones left",
        NAMESPACED,
    ),
    Row(
        "what other jobs run in",
        "in the cache: environments, layers, packages and images of other jobs",
        NAMESPACED,
    ),
    Row("home", "the home directory of the service's user", NAMESPACED),
    Row("mounts", "hidden files, by undoing or going round the mounts", _UNDONE),
    Row(
        "links for a restart",
        "hidden files, by links that the program leaves where it will be started again",
        EVERYWHERE,
    ),
    Row(
        "links in buckets",
        "hidden files, by links and pipes in its own bucket, which the service then reads or writes",
        EVERYWHERE,
    ),
    Row(
        "elsewhere",
        "files of the service's user outside of his home directory, to which his installation may belong",
        (HELD, OPEN, OPEN, OPEN, OPEN),
    ),
    Row("machine", "to change the machine's own files and settings", _ROOT),
    Row("disks", "disks and the machine's memory as devices", (HELD, HELD, VARIES, HELD, HELD)),
    Row("set-user bits", "to become another user by a program with a set-user bit", _ROOT),
    Row("daemons", "sockets of docker, podman, containerd", (HELD, HELD, HELD, HELD, VARIES)),
    Row("processes", "to see processes of other jobs, or of the service", NAMESPACED),
    Row("signals", "to signal them, or the replica's own shim", NAMESPACED),
    Row(
        "spying",
        "memory, environment or handles of the shim and the relay beside it, or of others",
        (HELD, HELD, OPEN, HELD, VARIES),
    ),
    Row("processes without end", "more processes than `max_processes`", NAMESPACED),
    Row(
        "own limits",
        "to raise its limits, or leave its control groups",
        (HELD, HELD, OPEN, HELD, HELD),
    ),
    Row("memory", "more memory than the limit, touched as fast as it goes", EVERYWHERE),
    Row(
        "memory, unmapped",
        "more memory than the limit, in files in memory (memfd, /dev/shm) that nobody has mapped",
        (VARIES, VARIES, VARIES, VARIES, VARIES),
    ),
    Row("bucket directory", "another project's bucket, as a directory", NAMESPACED),
    Row(
        "bucket, own endpoint",
        "another project's bucket, by the replica's own endpoint, whatever it says of itself",
        EVERYWHERE,
    ),
    Row(
        "bucket, ports",
        "another project's bucket, by the service's ports: any token, a forged caller, smuggled requests",
        EVERYWHERE,
    ),
    Row(
        "bucket, other endpoint",
        "another project's bucket, by another replica's endpoint, or that one's token",
        EVERYWHERE,
    ),
    Row(
        "staged packages",
        "to replace or delete packages that clients have staged for other projects, or to make the bucket "
        "for them, by its directory and by requests",
        EVERYWHERE,
    ),
    Row("API without a token", "the service's API without a token", EVERYWHERE),
    Row(
        "API with its token",
        "other projects, removing jobs, jobs that have more than itself, shells, secrets, by the API with "
        "its own token",
        EVERYWHERE,
    ),
    Row("forged tokens", "the service's API with a changed token", EVERYWHERE),
    Row(
        "loopback", "servers on the machine's loopback, port 2222 of other jobs among them", NOWHERE
    ),
    Row(
        "addresses",
        "to listen on another replica's address, at a port that is free",
        # More ways in tests/contract/replica/test_socket_calls.py. Where others' processes can be used they
        # bind for it.
        (HELD, HELD, VARIES, HELD, VARIES),
    ),
    Row("abstract sockets", "Unix sockets with names in no directory", NOWHERE),
)

WARM_ROWS = (
    Row("preloader", "the preloader that it was forked from, and those of others", NAMESPACED),
    Row("what it was forked with", "memory and handles of others that a fork has kept", EVERYWHERE),
    Row("interpreter", "to change the interpreter that others run in", EVERYWHERE),
)
"""What only a program that began warm can try (docs/warm-starts.md)."""


def shown() -> str:
    """The table as the page has it, and before it what is held at every level."""
    titles = [column.title for column in COLUMNS]
    everywhere = [row.what for row in ROWS if set(row.says) == {HELD}]
    lines = [
        f"Held at every level: {'; '.join(everywhere)}.",
        "",
        "| what a program tries | " + " | ".join(titles) + " |",
        "|---|" + "---|" * len(titles),
    ]
    differ = (row for row in ROWS if row.what not in everywhere)
    lines += [f"| {row.what} | " + " | ".join(row.says) + " |" for row in differ]
    return f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}\n"
