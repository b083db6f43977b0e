"""Fixtures for the tests of every engine: a running engine, launch plans, and events that a test
can await."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.e2e.processes import new_mark
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaEvent, ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import spawner
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.port import (
    CapacityChanged,
    EngineEvent,
    LevelUnavailable,
    LinesWritten,
    MetricsWritten,
    NodeChanged,
    NodesChosen,
    ProgramRules,
    ReplicaReport,
    Slot,
    SlotRequest,
    StartWaits,
)
from trainshed.replica.protocol import LEVEL_SESSION

PYTHON = sys.executable
PRIMARY = ReplicaId(0, 0)
EVENT_TIMEOUT = 60.0
SECOND = 10**9


class EngineHarness:
    """A running engine with its data directory and all received events. It can be restarted."""

    def __init__(self, data: Path, level: str | None) -> None:
        self.data = data
        self.rules = ProgramRules(level)
        # Programs must be able to read the interpreter that runs the tests, even if its directory
        # is private.
        self.options: dict[str, Any] = {"read_only": (Path(sys.prefix), Path(sys.base_prefix))}
        self.events: list[EngineEvent] = []
        self._changed = asyncio.Event()
        self._gangs: dict[JobUid, tuple[Slot, ...]] = {}
        self.engine = LocalEngine(data, Options(rules=self.rules, **self.options))
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.engine.start()
        self._reader = asyncio.get_running_loop().create_task(self._read(self.engine))

    async def _read(self, engine: LocalEngine) -> None:
        async for event in engine.watch():
            self.events.append(event)
            self._changed.set()

    async def close(self) -> None:
        await self.engine.close()
        if self._reader is not None:
            await self._reader

    async def restart(self, *, rules: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Restart like the service: create a new engine on the same data, without earlier events.
        `options` and `rules` apply to this and all later engines."""
        await self.close()
        self.events.clear()
        self.options |= options
        self.rules = replace(self.rules, **(rules or {}))
        self.engine = LocalEngine(self.data, Options(rules=self.rules, **self.options))
        await self.open()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(EVENT_TIMEOUT):
            while not is_true():
                self._changed.clear()
                await self._changed.wait()

    def job(self) -> JobUid:
        return JobUid(2 + len(self._gangs))

    async def allocate(self, uid: JobUid, replicas: list[ReplicaId] | None = None) -> tuple[Slot, ...]:
        """Allocate slots on the first node."""
        node = (await self.engine.capacity())[0].name
        requests = [SlotRequest(r, f"host-{uid}-{r}", node) for r in replicas or [PRIMARY]]
        slots = await self.engine.allocate(uid, 1, requests)
        self._gangs[uid] = slots
        return slots

    async def end_all(self) -> None:
        """Stop all allocated slots, and wait until each slot has reported an end after this call."""
        self.events.clear()
        for uid in self._gangs:
            await self.engine.stop(uid, 1, 0)
        wanted = {(uid, slot.replica) for uid, slots in self._gangs.items() for slot in slots}

        def over() -> bool:
            reports = [e for e in self.events if isinstance(e, ReplicaReport)]
            ends = [e for e in reports if isinstance(e.event, ReplicaExited | ReplicaLost)]
            return wanted <= {(end.job_uid, end.event.replica) for end in ends}

        await self.until(over)

    def forget(self, uid: JobUid) -> None:
        """Exclude a job that the test itself has released from `end_all`."""
        self._gangs[uid] = ()

    def zygote(self) -> int:
        """Return the process ID of the engine's zygote."""
        handle = self.engine._spawner._handle  # pyright: ignore[reportPrivateUsage] - to kill it
        assert handle is not None
        return handle.pid

    async def run(self, *argv: str, **fields: object) -> JobUid:
        """Start one replica and return its job."""
        uid = self.job()
        await self.allocate(uid)
        await self.engine.launch([self.plan(uid, *argv, **fields)])
        return uid

    def plan(self, uid: JobUid, *argv: str, **fields: object) -> LaunchPlan:
        values: dict[str, object] = {"job_uid": uid, "attempt": 1, "replica": PRIMARY, "argv": argv}
        values |= {"incarnation": 1, "environ": (), "address": "", "hosts": ()}
        values["hostname"] = f"host-{uid}-{PRIMARY}"
        return LaunchPlan(**(values | fields))  # pyright: ignore[reportArgumentType] - built by name

    async def python(self, program: str, **fields: object) -> JobUid:
        return await self.run(PYTHON, "-u", "-c", program, **fields)

    def events_of(self, uid: JobUid) -> list[ReplicaEvent | LinesWritten | MetricsWritten | StartWaits]:
        """Return the received events of a job in order."""
        of_jobs = (e for e in self.events if not isinstance(e, NodeChanged | CapacityChanged | NodesChosen))
        mine = [e for e in of_jobs if e.job_uid == uid]
        return [e.event if isinstance(e, ReplicaReport) else e for e in mine]

    def ends(self, uid: JobUid, incarnation: int = 1) -> list[ReplicaExited | ReplicaLost]:
        return [
            event
            for event in self.events_of(uid)
            if isinstance(event, ReplicaExited | ReplicaLost) and event.incarnation == incarnation
        ]

    async def end(
        self, uid: JobUid, replica: ReplicaId = PRIMARY, incarnation: int = 1
    ) -> ReplicaExited | ReplicaLost:
        """Wait for the end of an incarnation."""

        def matching_ends() -> list[ReplicaExited | ReplicaLost]:
            return [e for e in self.ends(uid, incarnation) if e.replica == replica]

        await self.until(lambda: bool(matching_ends()))
        return matching_ends()[0]

    async def exit(self, uid: JobUid, replica: ReplicaId = PRIMARY, incarnation: int = 1) -> ReplicaExited:
        end = await self.end(uid, replica, incarnation)
        assert isinstance(end, ReplicaExited), end
        return end

    async def wait_for_start(self, uid: JobUid, replica: ReplicaId = PRIMARY) -> ReplicaStarted:
        def matching_starts() -> list[ReplicaStarted]:
            return [e for e in self.events_of(uid) if isinstance(e, ReplicaStarted) and e.replica == replica]

        await self.until(lambda: bool(matching_starts()))
        return matching_starts()[0]

    def log(self, uid: JobUid, replica: ReplicaId = PRIMARY) -> list[dict[str, object]]:
        directory = self.data / "logs" / str(uid) / "1" / str(replica)
        return [
            json.loads(line)
            for segment in sorted(directory.glob("0*.jsonl"))
            for line in filter(None, segment.read_text("utf-8").split("\n"))
        ]

    def texts(self, uid: JobUid, replica: ReplicaId = PRIMARY) -> list[object]:
        return [line["m"] for line in self.log(uid, replica)]

    async def line(self, uid: JobUid, wanted: Callable[[str], bool]) -> str:
        """Wait for a line of the primary's log."""

        def matching_lines() -> list[str]:
            return [text for text in map(str, self.texts(uid)) if wanted(text)]

        def heard() -> bool:
            return any(isinstance(e, LinesWritten) and e.job_uid == uid for e in self.events)

        await self.until(lambda: heard() and bool(matching_lines()))
        return matching_lines()[0]

    def slot(self, uid: JobUid, replica: ReplicaId = PRIMARY) -> Path:
        return self.data / "slots" / str(uid) / "1" / str(replica)

    def shim(self, uid: JobUid, replica: ReplicaId = PRIMARY) -> dict[str, int]:
        """Return the process ID and start time of the shim that served a slot last, from the slot's
        journal."""
        entries: dict[str, int] = {}
        for line in (self.slot(uid, replica) / "journal").read_text().splitlines():
            entries.update(json.loads(line) if line else {})
        return entries


@asynccontextmanager
async def open_harness(data: Path, level: str | None) -> AsyncGenerator[EngineHarness]:
    """Open an engine, and check at the end that none of its processes are left. Skip the test if
    the machine does not support the level."""
    harness = EngineHarness(data, level)
    try:
        await harness.open()
    except LevelUnavailable as refusal:
        await harness.engine.close()
        pytest.skip(str(refusal))
    try:
        yield harness
    finally:
        await harness.end_all()
        await harness.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(
    params=[
        pytest.param(None, id="local"),
        # tests/engines proves both, and tests/contract/replica has programs at both levels.
        pytest.param(
            LEVEL_SESSION, id="local-without-namespaces", marks=[] if os.geteuid() else [pytest.mark.soak]
        ),
    ]
)
async def harness(
    data: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineHarness]:
    # A busy preloader may answer slowly, and its program would then start cold.
    patient_start = (
        "from trainshed.replica.supervisor import warm_start; warm_start._ANSWER_TIMEOUT = 60; zygote.run"
    )
    start = spawner._START.replace("zygote.run", patient_start)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", start)
    async with open_harness(data, request.param) as harness:
        yield harness


@pytest.fixture
def common_place() -> Iterator[Path]:
    """A directory that programs of all users can write to if their view contains it."""
    with tempfile.TemporaryDirectory(prefix="trainshed-common-") as name:
        place = Path(name)
        place.chmod(0o777)
        yield place


@pytest.fixture
def mark() -> str:
    return new_mark()
