"""What a service and the process of a step say to each other."""

from msgspec import Struct

from trainshed.core.datasets.plans import SplitPlan
from trainshed.datasets.port import Account, Written


class Request(Struct, frozen=True):
    """What is to be written, by which socket, with whose rights. `parent`: the process to die with."""

    socket: str
    account: Account
    plan: SplitPlan
    parent: int


class Answer(Struct, frozen=True, omit_defaults=True):
    """One line. The last one has `written` or says why nothing was."""

    progress: str = ""
    refused: str = ""
    failed: str = ""
    written: Written | None = None
