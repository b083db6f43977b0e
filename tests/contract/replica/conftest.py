"""Real shims without an engine: a zygote, a slot, and the messages of its shim."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of
from tests.contract.replica.relays import WAIT_TIMEOUT, FakeBackend
from tests.isolation import strongest
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica.sandbox import users
from trainshed.replica.supervisor import journal
from trainshed.replica.system import cgroups
from trainshed.serve import certificates

PYTHON = sys.executable
SECOND = 10**9
LEVELS = (protocol.LEVEL_OWN, protocol.LEVEL_ROOT, protocol.LEVEL_USER, protocol.LEVEL_SESSION)
OWN = (0x7FFE0000, users.COUNT)
"""The user numbers of a replica at the level with separate users."""


class Line:
    """A connection to a shim."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_TIMEOUT)
        self.socket, self._lines = connection, protocol.Lines()
        self._inbox: list[protocol.Message] = []

    def order(self, **message: object) -> None:
        self.socket.sendall(protocol.encode(message))

    def hear(self, *kinds: str) -> protocol.Message:
        """Return the next message of one of these kinds, and skip others."""
        while True:
            while self._inbox:
                if (message := self._inbox.pop(0))["e"] in kinds:
                    return message
            if not (data := self.socket.recv(65536)):
                raise EOFError("the shim hung up")
            self._inbox += self._lines.feed(data)

    def record(self) -> protocol.Message:
        """Return the attempt record of a program that ran."""
        message = self.hear("exited", "lost", "refused")
        assert message["e"] == "exited", message
        return message["record"]


class Place:
    """One slot of one gang, below a directory of the test."""

    def __init__(self, root: Path, zygote: spawner.ZygoteHandle, level: str) -> None:
        self.slot = root / "slots" / "1" / "workerpool0-0"
        self.slot.mkdir(parents=True)
        self.logs, self.hosts = root / "logs", root / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.level, self._zygote, self._incarnation = level, zygote, 0

    def document(self, incarnation: int, *argv: str, **fields: object) -> protocol.Message:
        document = {
            "incarnation": incarnation,
            "argv": list(argv),
            "environ": {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
            "logs": str(self.logs),
            "hosts": str(self.hosts),
            "level": self.level,
            "users": OWN if self.level == protocol.LEVEL_OWN else (),
            # The interpreter may be in a directory that only its owner can enter.
            "read_only": [sys.prefix, sys.base_prefix],
            "cgroup_name": f"trainshed-test-{os.getpid()}-{self.slot.parents[2].name}",
        } | fields
        return protocol.LaunchDocument.from_message(document).to_message()

    def run(self, *argv: str, **fields: object) -> Line:
        """Start the next incarnation, and return a connection with all messages of its shim."""
        self._incarnation += 1
        return self._start(*argv, **fields)

    def _start(self, *argv: str, **fields: object) -> Line:
        ours, theirs = socket.socketpair()
        with theirs:
            document = self.document(self._incarnation, *argv, **fields)
            wish = self._zygote.request({"slot": str(self.slot), "plan": document}, theirs.fileno())
            asyncio.run(wish)
        return Line(ours)

    def python(self, program: str, **fields: object) -> Line:
        return self.run(PYTHON, "-c", program, **fields)

    def again(self, program: str, **fields: object) -> Line:
        """Request the first incarnation, which may have been requested before."""
        self._incarnation = 1
        return self._start(PYTHON, "-c", program, **fields)

    def up(self, line: Line) -> None:
        """Wait until the program has written a line."""
        message = line.hear("lines", "exited", "lost", "refused")
        assert message["e"] == "lines", (message, self.texts())

    def log(self) -> list[dict[str, object]]:
        return [
            json.loads(line)
            for segment in sorted(self.logs.glob("0*.jsonl"))
            for line in filter(None, segment.read_text("utf-8").split("\n"))
        ]

    def texts(self) -> list[str]:
        return [str(line["m"]) for line in self.log()]

    def journal(self) -> dict[str, int]:
        """Return the process ID of the slot's last shim, from the journal."""
        entries: dict[str, int] = {}
        for entry in (self.slot / protocol.JOURNAL).read_text().splitlines():
            entries.update(json.loads(entry) if entry else {})
        return entries

    def program(self) -> int:
        """Return the process ID of the running main process, which its shim has forked first."""
        shim = self.journal()["shim"]
        return int(Path(f"/proc/{shim}/task/{shim}/children").read_text().split()[0])


@pytest.fixture(scope="session")
def memory_base() -> str | None:
    return cgroups.find_bases().get("memory")


@pytest.fixture(scope="session")
def zygote() -> Iterator[spawner.ZygoteHandle]:
    """A zygote whose shims wait for stack dumps long enough for a busy machine."""
    patient_start = "import stall; stall._DUMP_SECONDS = stall._ONE_DUMP_SECONDS = 60; zygote.run"
    start = spawner._START.replace("zygote.run", f"from trainshed.replica.observe {patient_start}")  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawner, "_START", start)
        handle = spawner.start()
    yield handle
    handle.close()


@pytest.fixture(autouse=True)
def _longer_lock_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that ends a replica through its journal wait longer: killing can take long on a
    busy machine."""
    monkeypatch.setattr(journal, "_LOCK_TIMEOUT", WAIT_TIMEOUT)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    with disk_of("size=256k,mode=755", tmp_path / "disk") as disk:
        yield disk


WITHOUT_LEVELS = ("test_gpus", "test_reduction", "test_exhausted_resources", "test_stall")
"""Test modules whose subject is the same at every level. They run at the strongest one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.stem in WITHOUT_LEVELS:
            called = getattr(item, "callspec", None)
            if called is not None and called.params.get("place", strongest()) != strongest():
                item.add_marker(pytest.mark.soak)


BETWEEN = (protocol.LEVEL_ROOT, protocol.LEVEL_USER) if strongest() == protocol.LEVEL_OWN else ()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the slot."""
    return tmp_path


@pytest.fixture(
    params=[
        # The levels between the strongest and the weakest. tests/engines has an ordinary user's
        # level, and tests/e2e/test_hostile.py attacks each one.
        pytest.param(level, marks=pytest.mark.soak) if level in BETWEEN else level
        for level in LEVELS
    ]
)
def place(root: Path, zygote: spawner.ZygoteHandle, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A slot at each level that this machine supports. None of its processes remain at the end."""
    if LEVELS.index(request.param) < LEVELS.index(strongest()):
        pytest.skip("NOT TESTED: this level is more than this machine has")
    yield (place := Place(root, zygote, request.param))
    assert journal.expel(str(place.slot), 10**6, "the test is over")


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[FakeBackend]:
    yield (made := FakeBackend(tmp_path / "behind"))
    made.server.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Interception:
    """The certificates of an endpoint that intercepts Google's hosts."""
    return certificates.prepare_interception(tmp_path_factory.mktemp("service"), time.time(), {})
