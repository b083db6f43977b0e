"""One run from its job to its exit status: prepares the runtime, starts the one replica, shows its lines, and ends it when asked.

Works with the very parts of a service, controller and store left out: nothing of a run is kept, and nothing is tried twice.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainshed.buckets.local import LocalStore
from trainshed.controller.launching import Launching, launch_plans, slot_requests
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import ExitRecord, Job
from trainshed.core.runtime import CONTAINER
from trainshed.core.secrets import SecretRef
from trainshed.core.specs import warnings
from trainshed.engines.local import machine
from trainshed.engines.local.devices import NvmlDevices
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.engines.port import LinesWritten, Slot, SlotExited, SlotLost
from trainshed.replica import program, protocol
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.port import PackageSource, PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.serve import clock, interception
from trainshed.serve.adapters import BucketDoor
from trainshed.serve.local_run import job as jobs
from trainshed.serve.local_run import packing
from trainshed.serve.local_run.output import Output
from trainshed.serve.local_run.room import Room
from trainshed.serve.local_run.storage import Storage, socket_of
from trainshed.serve.local_run.wish import NotRun, Wish
from trainshed.serve.settings import Settings

APP = "/usr/app"
"""Where the program's directory is in a container image, as the public command has it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended; `kept`: where its files are, if they are."""

    record: ExitRecord
    memory_limit: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Means:
    """What exists before the event loop does. `tell`: takes a line for the person at the terminal."""

    settings: Settings
    room: Room
    storage: Storage
    zygote: ZygoteHandle
    tell: Callable[[str], None]


class Given:
    """The secrets that the run was given, as an engine's door to them."""

    def __init__(self, values: Mapping[SecretRef, str]) -> None:
        self._values = values

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """As the protocol says; that all are there was checked before."""
        return {ref: self._values[ref] for ref in refs}


class Run:
    """One run; to be run once."""

    def __init__(self, wish: Wish, means: Means) -> None:
        settings = means.settings
        self._wish = wish
        self._settings = settings
        self._room = means.room
        self._storage = means.storage
        self._tell = means.tell
        self._place = jobs.Place(settings.project, settings.region)
        self._intercepting = interception.places(settings.data.resolve())
        self._engine = self._new_engine(means.zygote)
        self._buckets = LocalStore(
            settings.data / "buckets", now=clock.now, rules=means.storage.rules
        )
        self._asked = 0
        self._job: Job | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_read = True

    async def run(self) -> Ended:
        """All of it. Raises NotRun, and what engines and runtimes do; asyncio.CancelledError: it was interrupted before the
        program began."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt, task)
        try:
            return await self._run()
        finally:
            await self._engine.close()

    async def _run(self) -> Ended:
        settings = self._settings
        pack, _, _ = await asyncio.gather(
            asyncio.to_thread(packing.pack, self._wish), self._storage.begin(), self._engine.start()
        )
        self._buckets.ensure_bucket(settings.default_bucket, settings.region)
        door = BucketDoor(self._buckets)
        runtimes = self._runtimes(packing.Parcels(pack.parcels, lambda: door))
        try:
            job = await self._new_job(pack, runtimes, door)
            prepared = await self._prepare(runtimes, job)
        finally:
            await asyncio.to_thread(runtimes.close)
        slots = await self._engine.allocate(job.uid, 1, slot_requests(job))
        await asyncio.to_thread(self._furnish, job, slots[0], pack, prepared)
        plan = self._plan(job, slots, pack, prepared, door)
        self._job = job
        await self._engine.launch([plan])
        record = await self._follow(job)
        kept = self._keep(job, prepared) if self._wish.keep else ""
        memory = (await self._engine.capacity())[0].memory_bytes
        return Ended(record, min(plan.memory_limit or memory, memory), kept)

    def _interrupt(self, task: "asyncio.Task[Ended]") -> None:
        """The first time the program is asked to stop and has its grace, the second time it is killed."""
        self._asked += 1
        if self._job is None:
            task.cancel()
            return
        if self._asked == 1:
            self._tell(f"Stopping: the program has {self._settings.grace:g} seconds to end.")
        grace = round(self._settings.grace * 1e9) if self._asked == 1 else 0
        self._stopping = asyncio.create_task(self._engine.stop(self._job.uid, 1, grace))

    # --- what it runs in ---

    def _new_engine(self, zygote: ZygoteHandle) -> LocalEngine:
        settings, intercepting = self._settings, self._intercepting
        return LocalEngine(
            self._room.directory,
            zygote=zygote,
            storage_socket=socket_of(settings.data),
            hidden=(settings.data,),
            read_only=(settings.cache, intercepting.trust.parent),
            certificate=intercepting.certificate,
            trust=intercepting.trust,
            secrets=Given(self._wish.secrets),
            lease=settings.lease,
            level=settings.isolation,
            visible=[Path(path) for path in settings.visible_paths.split(":") if path],
            processes=settings.max_processes,
            now=clock.now,
        )

    def _runtimes(self, source: PackageSource) -> LocalRuntimes:
        settings = self._settings
        return LocalRuntimes(
            settings.cache,
            source,
            RuntimeSettings(
                exact=settings.exact_runtimes,
                image_map=settings.images,
                hidden=(settings.data,),
                isolation=settings.isolation,
                has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
            ),
            now=clock.now,
            images=Images(
                settings.cache / "images",
                ImageSettings(settings.container_tool, settings.image_pull),
                now=clock.now,
                unsupported=self._no_images,
            ),
        )

    def _no_images(self) -> str:
        can = self._engine.capabilities()
        if can.images:
            return ""
        return f"Container images need namespaces, and there are none here (isolation {can.isolation})."

    # --- the job ---

    async def _new_job(self, pack: packing.Pack, runtimes: LocalRuntimes, door: BucketDoor) -> Job:
        wish = self._wish
        catalog = jobs.NamedRuntimes(runtimes.catalog, wish.image)
        public = jobs.request(wish, pack, catalog.uri)
        # Looking for interpreters and container tools may take a moment.
        spec = await asyncio.to_thread(jobs.specified, wish, pack, self._place, public, catalog)
        found = list(spec.warnings)
        if wish.output:
            self._check_output(door)
        for name in dict.fromkeys(warnings.named_directories(spec.pools)):
            if door.is_remote(name):
                found.append(warnings.not_mounted(name))
        if wish.gpu:
            there = {
                kind for node in await self._engine.capacity() for kind, _ in node.accelerators
            }
            found += filter(None, [warnings.without_gpus(spec.pools, there)])
        spec = replace(spec, warnings=tuple(found))
        return jobs.job(clock.JobUids()(), self._place, spec, clock.now(), machine.NAME)

    def _check_output(self, door: BucketDoor) -> None:
        name = self._wish.output[5:].partition("/")[0]
        if door.bucket_location(name) is None or door.is_closed(name, self._place.project):
            raise NotRun(
                f"--base-output-dir: there is no bucket {name!r} for the project {self._place.project!r}; the default one is "
                f"gs://{self._settings.default_bucket}."
            )

    async def _prepare(self, runtimes: LocalRuntimes, job: Job) -> PreparedRuntime:
        asked = job.spec.pools[0].program
        ready = runtimes.ready(asked.runtime, asked.package_uris)
        prepared = ready or await runtimes.prepare(asked.runtime, asked.package_uris, self._tell)
        if prepared.intercept:
            now = clock.now() / 1e9
            await asyncio.to_thread(interception.prepare, self._settings.data, now, os.environ)
        return prepared

    def _slot(self, job: Job) -> Path:
        layout = Layout(self._room.directory.resolve())
        return layout.attempt(job.uid, 1) / str(jobs.REPLICA)

    def _furnish(self, job: Job, slot: Slot, pack: packing.Pack, prepared: PreparedRuntime) -> None:
        """Put the program's files where it begins."""
        if not self._wish.entry:
            return
        files = self._slot(job) / protocol.FILES
        work = files / program.WORK
        if prepared.image is not None:
            work = files.joinpath(program.LAYER, "upper", *APP.strip("/").split("/"))
        files.mkdir(mode=0o700, exist_ok=True)
        top = files / program.LAYER if prepared.image is not None else work
        old = os.umask(0o022 if prepared.image is not None else 0o077)
        try:
            work.mkdir(parents=True, exist_ok=True)
            away = (self._settings.data, self._settings.cache)
            packing.copy(self._wish.directory, pack.trees, work, away)
            for parcel in pack.parcels if prepared.image is not None else ():
                place = self._packages / parcel.uri.removeprefix(f"gs://{packing.BUCKET}/")
                place.parent.mkdir(parents=True)
                place.write_bytes(parcel.content)
        finally:
            os.umask(old)
        if prepared.image is not None:
            packing.give(work, slot.users)
            for parent in (work.parent, top):
                os.chown(parent, slot.users or -1, slot.users or -1)

    @property
    def _packages(self) -> Path:
        """What an image's own Python installs, shown as if it lay in a bucket."""
        return self._room.directory / "packages"

    def _plan(
        self,
        job: Job,
        slots: tuple[Slot, ...],
        pack: packing.Pack,
        prepared: PreparedRuntime,
        door: BucketDoor,
    ) -> LaunchPlan:
        asked = job.spec.pools[0].program
        buckets = door.shown(self._place.project)
        if asked.runtime.family == CONTAINER and pack.parcels:
            buckets = (*buckets, (packing.BUCKET, str(self._packages)))
        (plan,) = launch_plans(
            job,
            slots,
            {(asked.runtime, asked.package_uris): prepared},
            Launching(memory_cap=self._settings.memory_per_replica << 20),
            {jobs.REPLICA: 1},
            buckets,
        )
        if plan.image is None or not self._wish.entry:
            return plan
        return replace(plan, image=replace(plan.image, workdir=APP))

    # --- its life ---

    async def _follow(self, job: Job) -> ExitRecord:
        """To the program's end. Raises NotRun; BrokenPipeError: nobody wanted to know any more, and it was killed."""
        output = Output(Layout(self._room.directory).logs / str(job.uid) / "1" / str(jobs.REPLICA))
        async for event in self._engine.watch():
            match event:
                case LinesWritten():
                    await self._show(output, job)
                case SlotExited():
                    await self._show(output, job)
                    if not self._is_read:
                        raise BrokenPipeError
                    return event.exit
                case SlotLost():
                    await self._show(output, job)
                    raise NotRun(f"The program was lost: {event.cause}.")
                case _:
                    pass
        raise NotRun("The engine has ended before the program.")

    async def _show(self, output: Output, job: Job) -> None:
        if not self._is_read:
            return
        try:
            await asyncio.to_thread(output.show)
        except BrokenPipeError:
            # Whoever read us has gone, as `head` does: then the program goes too.
            self._is_read = False
            await self._engine.stop(job.uid, 1, 0)

    def _keep(self, job: Job, prepared: PreparedRuntime) -> str:
        self._room.keep()
        files = self._slot(job) / protocol.FILES
        if prepared.image is not None:
            return str(files / program.LAYER / "upper")
        return str(files / program.WORK)


def status_of(record: ExitRecord) -> int:
    """As a shell tells it: the program's own, or 128 and the number of the signal that it died of."""
    if record.signal is not None:
        return 128 + record.signal
    return record.exit_code or 0


async def start(wish: Wish, means: Means) -> Ended:
    """Run it (`Run.run`) and let go of the buckets."""
    with contextlib.closing(means.storage):
        return await Run(wish, means).run()
