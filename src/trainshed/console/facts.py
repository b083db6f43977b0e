"""What pages say of the service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What pages say of the service."""

    version: str
    project: str
    region: str
    bucket: str
    #: Where browsers and clients reach it.
    address: str
    #: How its own commands are called here.
    command: str = "trainshed"
