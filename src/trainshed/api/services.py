"""What the handlers work with: doors, clocks and settings, handed in by the composition root."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainshed.core.names import JobUid
from trainshed.core.runtime import RuntimeCatalog
from trainshed.store.logs.reader import LogReader
from trainshed.store.notices import Notices
from trainshed.store.port import Intake, Reader


class BucketProbe(Protocol):
    """The one question validation asks of the buckets."""

    def bucket_location(self, name: str) -> str | None:
        """Where a bucket is (`US`, `us-central1`); None if there is none of this name. Cheap: a small file."""
        ...


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the answers say of this installation. `version` is the service's own; `service_account` stands for
    the service where an answer names one; `project`, `region` and `bucket` are what a client takes that
    was told nothing else ("": none)."""

    version: str = ""
    service_account: str = "trainshed@localhost"
    project: str = ""
    region: str = ""
    bucket: str = ""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a handler may use.

    `now` gives nanoseconds since the epoch; `new_uid` a fresh identity, ascending with time; `wake`
    tells the controller that a job has something to do; `closing` is set when the server shuts
    down, so that streams end and no more jobs are taken.
    """

    intake: Intake
    reader: Reader
    logs: LogReader
    notices: Notices
    runtimes: RuntimeCatalog
    buckets: BucketProbe
    now: Callable[[], int]
    new_uid: Callable[[], JobUid]
    wake: Callable[[JobUid], None]
    settings: ApiSettings = ApiSettings()
    closing: asyncio.Event = field(default_factory=asyncio.Event)
