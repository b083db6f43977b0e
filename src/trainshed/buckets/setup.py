"""What a bucket process is told when it starts: where it listens and keeps its objects, and whose the buckets are.

Holds no secret: it stands on a command line. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from trainshed.buckets.rules import BucketRules
from trainshed.httpd.hosts import Hosts


@dataclass(frozen=True, slots=True)
class BucketSetup:
    """`root`: the directory of the objects. `gateway`, `replicas`: paths of the Unix sockets for the API's gateway and
    for the relays of replicas, "" = none. `host`: of the TCP port, "" = there is none; `port` 0 = any free one.
    `certificate`, `key`: PEM files for a second port, `tls_port`, that speaks TLS; "" = there is none. `tls`: `port` speaks
    it, too, and plain HTTP with this machine alone.
    `tokens`: the service's token file. `service`: the Unix socket at which the API process hears programs, "" = nobody says
    whether a program is over. `anonymous`: who comes by the TCP port need not say who he is. `hosts`: by which names it may
    be called there."""

    root: str
    gateway: str = ""
    replicas: str = ""
    host: str = ""
    port: int = 0
    tls_port: int = 0
    certificate: str = ""
    key: str = ""
    tls: bool = False
    tokens: str = ""
    service: str = ""
    anonymous: bool = False
    hosts: Hosts = field(default_factory=Hosts)
    rules: BucketRules = field(default_factory=BucketRules)

    def encode(self) -> str:
        """As text, for `decode`."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> BucketSetup:
        """What `encode` made. Raises ValueError."""
        return msgspec.json.decode(text, type=BucketSetup)
