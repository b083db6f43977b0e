"""The expected results of the hostile programs by isolation level. docs/security.md shows the same table."""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

BEGIN = "<!-- generated from tests/e2e/hostile/table.py -->"
END = "<!-- end of generated text -->"


class Outcome(StrEnum):
    HELD = "held"
    OPEN = "open"
    #: On the machine itself; nothing is promised.
    VARIES = "depends"


HELD, OPEN, VARIES = Outcome.HELD, Outcome.OPEN, Outcome.VARIES


@dataclass(frozen=True, slots=True)
class Column:
    """A level, and the user of its service."""

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
    Column("`user`, with `--isolation user` as root", "user", as_root=True),
    Column("`session`", "session", as_root=False),
)


@dataclass(frozen=True, slots=True)
class Row:
    """`attempt`: the attacker's name for it. `says`: in the order of its table's columns."""

    attempt: str
    what: str
    says: tuple[Outcome, Outcome, Outcome, Outcome, Outcome]

    def expected_outcome(self, column: Column) -> Outcome:
        return self.says[COLUMNS.index(column)]


def strongest() -> tuple[Column, ...]:
    """Levels of a service of the user who runs these tests. `./dev test-all` attacks services of other users,
    optional levels and the level of a bare machine. tests/contract/replica tests programs at the last level,
    tests/engines/test_conformance.py those of an unprivileged user's service.
    """
    return COLUMNS[:1] if os.geteuid() == 0 else COLUMNS[1:2]


def columns() -> list[Any]:
    """Fixture parameters: one service for each column. Those of other users are soaks."""
    return [
        pytest.param(column, marks=[] if column in strongest() else [pytest.mark.soak], id=column.name)
        for column in COLUMNS
    ]


EVERYWHERE = (HELD, HELD, HELD, HELD, HELD)
NOWHERE = (OPEN, OPEN, OPEN, OPEN, OPEN)
NAMESPACED = (HELD, HELD, HELD, HELD, OPEN)
"""Levels with a separate view of the machine."""
_UNDONE = (HELD, HELD, OPEN, HELD, OPEN)
"""Levels whose view cannot be undone."""
_ROOT = (HELD, HELD, OPEN, OPEN, HELD)
"""Attempts that only the machine's root can make."""

ROWS = (
    Row(
        "service files",
        "reading the service's database, tokens, private keys and sockets by path",
        NAMESPACED,
    ),
    Row(
        "files of other jobs",
        "reading other jobs' working directories and logs, and the remains of failed jobs",
        NAMESPACED,
    ),
    Row(
        "what other jobs run in",
        "reading environments, layers, packages and images of other jobs in the cache",
        NAMESPACED,
    ),
    Row("home", "reading the home directory of the service's user", NAMESPACED),
    Row("mounts", "reading hidden files by undoing or bypassing mounts", _UNDONE),
    Row(
        "links for a restart",
        "reading hidden files through links that the program creates before a restart",
        EVERYWHERE,
    ),
    Row(
        "links in buckets",
        "reading hidden files through links and pipes that the program creates in a bucket and the service "
        "opens",
        EVERYWHERE,
    ),
    Row(
        "elsewhere",
        "accessing files of the service's user outside the home directory, such as the installation",
        (HELD, OPEN, OPEN, OPEN, OPEN),
    ),
    Row("machine", "changing the machine's files and settings", _ROOT),
    Row("disks", "opening disks and the machine's memory as devices", (HELD, HELD, VARIES, HELD, HELD)),
    Row("set-user bits", "becoming another user through a set-user-ID program", _ROOT),
    Row("daemons", "connecting to sockets of docker, podman, containerd", (HELD, HELD, HELD, HELD, VARIES)),
    Row("processes", "listing processes of other jobs or of the service", NAMESPACED),
    Row("signals", "sending signals to other jobs, to the service, or to the replica's own shim", NAMESPACED),
    Row(
        "spying",
        "reading memory, environment or file descriptors of the replica's own shim and relay, or of "
        "other processes",
        (HELD, HELD, OPEN, HELD, VARIES),
    ),
    Row("processes without end", "creating more processes than `max_processes`", NAMESPACED),
    Row(
        "own limits",
        "raising the program's own limits, or leaving its control groups",
        (HELD, HELD, OPEN, HELD, HELD),
    ),
    Row("memory", "exceeding the memory limit by writing to memory as fast as possible", EVERYWHERE),
    Row(
        "memory, unmapped",
        "exceeding the memory limit with unmapped files in memory (memfd, /dev/shm)",
        (VARIES, VARIES, VARIES, VARIES, VARIES),
    ),
    Row("bucket directory", "accessing another project's bucket as a directory", NAMESPACED),
    Row(
        "bucket, own endpoint",
        "accessing another project's bucket by sending a forged identity to the replica's own endpoint",
        EVERYWHERE,
    ),
    Row(
        "bucket, ports",
        "accessing another project's bucket at the service's ports with any token, with a forged caller, or "
        "by request smuggling",
        EVERYWHERE,
    ),
    Row(
        "bucket, other endpoint",
        "accessing another project's bucket through another replica's endpoint or token",
        EVERYWHERE,
    ),
    Row(
        "staged packages",
        "replacing or deleting another project's staged packages, or creating that project's staging bucket, "
        "as files or by requests",
        EVERYWHERE,
    ),
    Row("API without a token", "calling the service's API without a token", EVERYWHERE),
    Row(
        "API with its token",
        "using the program's own token to access other projects, delete jobs, create jobs with more rights, "
        "open shells, or read secrets",
        EVERYWHERE,
    ),
    Row("forged tokens", "calling the service's API with a modified token", EVERYWHERE),
    Row(
        "loopback",
        "connecting to servers on the machine's loopback, including port 2222 of other jobs",
        NOWHERE,
    ),
    Row(
        "addresses",
        "listening on a free port of another replica's address",
        # More ways in tests/contract/replica/test_socket_calls.py. Programs that can use other processes bind
        # through them.
        (HELD, HELD, VARIES, HELD, VARIES),
    ),
    Row("abstract sockets", "connecting to abstract Unix sockets", NOWHERE),
)

WARM_ROWS = (
    Row("preloader", "attacking its own preloader, and preloaders of other projects", NAMESPACED),
    Row("what it was forked with", "reading memory and file descriptors that a fork inherits", EVERYWHERE),
    Row("interpreter", "changing the interpreter of other programs", EVERYWHERE),
)
"""Attempts that only a warm-started program can make (docs/warm-starts.md)."""


def render_table() -> str:
    """Return the table as shown on the page, preceded by the attempts that fail at every level."""
    titles = [column.title for column in COLUMNS]
    everywhere = [row.what for row in ROWS if set(row.says) == {HELD}]
    lines = [
        "Held at every level:",
        "",
        *(f"- {attempt}" for attempt in everywhere),
        "",
        "| attempt | " + " | ".join(titles) + " |",
        "|---|" + "---|" * len(titles),
    ]
    differ = (row for row in ROWS if row.what not in everywhere)
    lines += [f"| {row.what} | " + " | ".join(row.says) + " |" for row in differ]
    return f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}\n"
