"""What pages say of the service."""

from msgspec import Struct


class Facts(Struct, frozen=True):
    """What pages say of the service."""

    version: str
    project: str
    region: str
    bucket: str
    #: Where browsers and clients reach it.
    address: str
    #: How its own commands are called here.
    command: str = "trainshed"
