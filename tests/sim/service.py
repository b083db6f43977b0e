"""One incarnation of the service under virtual time: the real controller over the persistent
store and world.
"""

import asyncio
import math
import random
from collections.abc import Callable, Collection, Sequence

from tests.sim.engine.streams import Journals
from tests.sim.scenario import Scenario
from trainshed.controller.capacity import MAX_INLINE_SIZE
from trainshed.controller.carrier import Ports
from trainshed.controller.controller import Controller
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.controller.parents import ParentStores
from trainshed.core.datasets.plans import SplitPlan
from trainshed.core.lifecycle.events import Event
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import RuntimeChoice
from trainshed.datasets.port import Account, DataUnwritten, Written
from trainshed.datasets.port import Progress as Tell
from trainshed.engines.port import Engine
from trainshed.runtimes.port import BuildFailed, PackageFailed, PreparedRuntime, Progress
from trainshed.store.logs.lines import LogCursor, LogLine, LogPage, Severity, Stream
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.logs.usage import ReplicaUsage
from trainshed.store.notices import Notices
from trainshed.store.sqlite.database import Store
from trainshed.store.sqlite.jobs import Ledger

SECOND = 10**9
GRACE = 30 * SECOND
BROKEN, BAD_PACKAGE, COLD = "gs://b/broken", "gs://b/bad", "gs://b/cold"
"""Packages of simulated jobs: the service cannot build the first, the user's is bad, the last
takes a while.
"""


class NoDatasets:
    """A fake dataset splitter that is never called: simulated jobs have no datasets."""

    async def write(self, plan: SplitPlan, account: Account, progress: Tell) -> Written:
        raise DataUnwritten(f"{plan.dataset} is not simulated")


class SimRuntimes:
    """Environments that are ready immediately, except for those of the packages above."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._built: set[str] = set()

    def ready(self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]) -> PreparedRuntime | None:
        uris = {package.uri for package in packages}
        special = {BROKEN, BAD_PACKAGE, COLD}.intersection(uris) - self._built
        return None if special else PreparedRuntime("")

    def reduction(self) -> str | None:
        return "/reduction"

    async def prepare_reduction(self, progress: Progress | None = None) -> str:
        return "/reduction"

    async def prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None = None
    ) -> PreparedRuntime:
        uris = {package.uri for package in packages}
        await asyncio.sleep(self._random.uniform(0.1, 90))
        if BROKEN in uris and self._random.random() < 0.6:
            raise BuildFailed("no interpreter could be had")
        if BAD_PACKAGE in uris:
            raise PackageFailed("the package has no setup.py")
        self._built.add(COLD)
        return PreparedRuntime("")


class SimBuckets:
    """Accepts all writes to job directories without writing."""

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        return ()

    def write_probe(self, uri: str, project: str, account: str) -> None: ...


class DiscardedLog(ServiceLog):
    """A service log that ignores all lines: builds of simulated runtimes print none."""

    def __init__(self) -> None: ...

    async def start(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        """Ignores log headers."""

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        raise AssertionError(lines)


class SimLogs(LogReader):
    """The output of a world's programs, in the form of the store's reader."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals

    async def usage(self, uid: JobUid, attempt: int) -> tuple[ReplicaUsage, ...]:
        return ()

    async def page(
        self,
        uid: JobUid,
        *,
        replicas: Collection[ReplicaId] | None = None,
        start: int = 0,
        end: int | None = None,
        after: LogCursor | None = None,
        limit: int = 1000,
        longest: float = math.inf,
        descending: bool = False,
    ) -> LogPage:
        assert end is None and not descending
        read = (
            LogLine(uid, line.attempt, line.replica, line.n, line.at, Stream.STDOUT, line.text, Severity.INFO)
            for line in self._journals.of(uid)
            if line.at >= start and (replicas is None or line.replica in replicas)
        )
        lines = [line for line in read if after is None or line.key > after.key]
        lines.sort(key=lambda line: line.key)
        more = len(lines) > limit
        return LogPage(tuple(lines[:limit]), lines[limit - 1].cursor if more else None)


def controller(
    store: Store, ledger: Ledger, engine: Engine, journals: Journals, stores: ParentStores, scenario: Scenario
) -> Controller:
    """Build a controller like `serve`. `ledger` and `engine`: real, or with instrumentation."""
    runtimes = SimRuntimes(scenario.seed)
    launching = LaunchDefaults()

    def ports(report: Callable[[JobUid, Event], None]) -> Ports:
        visible_buckets, probe = SimBuckets().visible_buckets, SimBuckets().write_probe
        return Ports(
            engine, runtimes, NoDatasets(), visible_buckets, probe, DiscardedLog(), launching, report, GRACE
        )

    return Controller(
        intake=store.intake,
        ledger=ledger,
        reader=store.reader,
        logs=SimLogs(journals),
        ports=ports,
        notices=Notices(),
        now=stores.now,
        owner="simulation",
        stores=stores,
        scheduling=scenario.policy,
        resources=store.persistent_resources,
        failures=scenario.operator_rules.policy,
        # In some worlds other tasks run during a decision.
        at_once=0 if scenario.seed % 3 == 0 else MAX_INLINE_SIZE,
    )
