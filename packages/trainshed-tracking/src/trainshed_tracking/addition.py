"""Adds tracking to a service (`trainshed.api.additions`): MetadataService, TensorboardService, and
TensorBoard below `/tensorboard`. Also adds the experiments, curves and links of jobs."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from msgspec.structs import replace

from trainshed.access.principals import Credential
from trainshed.api.additions import Addition, AdditionContext
from trainshed.api.calls.links import Links
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Spec
from trainshed.core.curves import CurveWriter
from trainshed.core.errors import FailedPrecondition, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid
from trainshed.core.works import Work
from trainshed.store.sqlite.reader import Reader
from trainshed.wire.trainshed_v1.jobs import ViewLink
from trainshed_tracking import references
from trainshed_tracking.metadata import service as metadata
from trainshed_tracking.stores import Stores, stores_in
from trainshed_tracking.tensorboards import points
from trainshed_tracking.tensorboards import service as tensorboards
from trainshed_tracking.tensorboards.curves import curves_of
from trainshed_tracking.viewers.service import LocalViewers, ViewerPool
from trainshed_tracking.viewers.surface import ViewerSurface
from trainshed_tracking.viewers.views import Viewers, directories_of, jobs_of, link_to, view_of

_MAX_VIEWERS: Final = 4
"""Maximum number of running TensorBoards. If another starts, the least recently used one is stopped."""
_SANDBOX_LIMITS: Final = {
    "processes": 256,
    "memory_bytes": 2 << 30,
    # A low limit suffices, because TensorBoard writes little data to its own directory.
    "disk_bytes": 64 << 20,
    "seconds": 0.0,
}
"""The resource limits of a TensorBoard. Its sandbox is the same as that of builds."""


class LocalTracking:
    """Implements the API's `Tracking` with the `stores` and `viewers` that its constructor receives."""

    def __init__(self, stores: Stores, viewers: Viewers, reader: Reader, links: Links) -> None:
        self._stores = stores
        self._viewers = viewers
        self._reader = reader
        self._links = links

    async def missing_references(self, place: LocationName, spec: Spec, path: str) -> tuple[Violation, ...]:
        return await references.missing_references(self._stores, place, spec, path)

    def create_run(self, experiment: str) -> AbstractAsyncContextManager[str]:
        return references.create_run(self._stores, experiment)

    async def add_to_run(self, run: str, job: JobName) -> None:
        await references.add_to_run(self._stores, run, job)

    def curves(self, job: Job) -> CurveWriter | None:
        return curves_of(self._stores, job)

    async def view(self, works: Sequence[Work], shown: Credential) -> ViewLink:
        uids = [work.uid for work in works]
        directories = await directories_of(self._reader, uids)
        if not directories:
            names = ", ".join(str(work.name) for work in works)
            raise FailedPrecondition(
                f"{names}: the directory for event files is unknown. Set a base output directory "
                "(baseOutputDirectory; --job-dir of an ml job) and write to $AIP_TENSORBOARD_LOG_DIR."
            )
        name = view_of(uids)
        uri = link_to(self._links, name, shown)
        return ViewLink(
            uri=uri,
            view=name,
            key=uri.rpartition("key=")[2],
            directories=tuple(directory.uri for directory in directories),
            has_files=await self._viewers.has_files(directories),
        )

    async def link_if_any(self, work: Work, shown: Credential) -> str | None:
        try:
            directories = await directories_of(self._reader, (work.uid,))
            if not await self._viewers.has_files(directories):
                return None
        except (NotFound, FailedPrecondition):
            return None
        return link_to(self._links, view_of((work.uid,)), shown)

    def end_views(self, job: JobUid) -> None:
        self._viewers.end(lambda view: job in jobs_of(view))

    async def close(self) -> None:
        await self._viewers.close()


def new_addition(context: AdditionContext) -> Addition:
    """Create the addition. This function is the entry point of the package."""
    viewers = LocalViewers(
        context.data / "viewers",
        context.runtimes,
        context.event_files,
        lambda: replace(context.terms(), **_SANDBOX_LIMITS),
        pool=ViewerPool(_MAX_VIEWERS),
        closing=context.closing,
    )
    return addition_with(context, viewers)


def addition_with(context: AdditionContext, viewers: Viewers) -> Addition:
    """Create the addition with the given viewers, instead of TensorBoards on this machine."""
    stores = stores_in(context.store, context.points, context.new_uid, context.now)
    reader, links = context.store.reader, context.links
    surface = ViewerSurface(viewers, reader, context.access, links, context.closing)
    return Addition(
        {**metadata.handlers(stores), **tensorboards.handlers(stores), **points.handlers(stores)},
        streams=points.streams(stores),
        mounts=lambda _services, _registry: {"tensorboard": surface},
        tracking=LocalTracking(stores, viewers, reader, links),
    )
