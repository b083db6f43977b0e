"""The stores of tracking: tables in the service's database, and files of points."""

from collections.abc import Callable

from msgspec import Struct

from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.store.points import PointFiles
from trainshed.store.sqlite.database import Store
from trainshed_tracking.metadata.table import Metadata, MetadataStores
from trainshed_tracking.tensorboards.table import Tensorboards


class Stores(Struct, frozen=True):
    """The records of experiments and tensorboards."""

    tensorboards: Tensorboards
    metadata_stores: MetadataStores
    metadata: Metadata
    points: PointFiles
    #: Returns a new UID. UIDs ascend with time.
    new_uid: Callable[[], JobUid]
    #: Returns the time in nanoseconds since the epoch.
    now: Callable[[], Nanos]


def stores_in(
    store: Store, points: PointFiles, new_uid: Callable[[], JobUid], now: Callable[[], Nanos]
) -> Stores:
    """Return the stores that use an open database."""
    parts = store.writer, store.snapshots
    return Stores(Tensorboards(*parts), MetadataStores(*parts), Metadata(*parts), points, new_uid, now)
