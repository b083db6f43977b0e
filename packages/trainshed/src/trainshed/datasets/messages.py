"""The messages between a service and the process that writes a dataset's splits."""

from msgspec import Struct

from trainshed.core.datasets.plans import SplitPlan
from trainshed.datasets.port import Account, Written


class Request(Struct, frozen=True):
    """What to write, through which socket of the buckets, and with whose rights. The process dies with
    `parent`."""

    socket: str
    account: Account
    plan: SplitPlan
    parent: int


class Answer(Struct, frozen=True, omit_defaults=True):
    """One line of the process: a line of progress, or at the end exactly one of the other fields."""

    progress: str = ""
    refused: str = ""
    failed: str = ""
    written: Written | None = None
