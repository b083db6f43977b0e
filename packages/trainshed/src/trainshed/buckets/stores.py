"""Finds the store of each bucket: this disk, or a remote store.

The library for remote stores is loaded only when the first such bucket is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainshed.buckets.content import Staged
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.port import Buckets, BucketStore
from trainshed.buckets.setup import PLAIN, BucketRules, BucketTable


def open_buckets(
    root: Path, *, now: Callable[[], int] = time.time_ns, rules: BucketRules = PLAIN
) -> Buckets:
    """Returns the buckets below a directory, and those that the rules say are remote."""
    here = ObjectStore(root, now=now, rules=rules)
    elsewhere = [table for table in rules.tables if table.is_remote]
    return ScatteredBuckets(here, elsewhere) if elsewhere else here


class ScatteredBuckets:
    """Implements `port.Buckets`."""

    def __init__(self, here: ObjectStore, elsewhere: list[BucketTable]) -> None:
        self.root = here.root
        self.catalog = here.catalog
        self.now = here.now
        self._here = here
        self._tables = {table.name: table for table in elsewhere}
        self._stores: dict[str, BucketStore] = {}
        self._lock = threading.Lock()

    def at(self, bucket: str) -> BucketStore:
        """Returns the store of a bucket; a bucket that no table names is on this disk."""
        table = self._tables.get(bucket)
        if table is None:
            return self._here
        with self._lock:
            if bucket not in self._stores:
                # The library takes many megabytes, which a service without such buckets never loads.
                from trainshed.buckets.remote import RemoteBucket
                from trainshed.buckets.remote_access import connect

                self._stores[bucket] = RemoteBucket(table, connect(table))
            return self._stores[bucket]

    def stage(self) -> Staged:
        """See the port."""
        return self._here.stage()

    def complete_records(self) -> None:
        """See the port."""
        self._here.complete_records()

    def clean(self) -> None:
        """See the port."""
        self._here.clean()
