"""What the operator's configuration says about the buckets, and what a bucket process is told when it starts.

It holds no secret: a `BucketSetup` is visible on a command line.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct, field

from trainshed.buckets.errors import BucketsError
from trainshed.buckets.names import validate_bucket_name
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.httpd.hosts import Hosts


class BucketRules(Struct, frozen=True):
    """What the configuration says about all buckets."""

    #: The project of buckets that were made for none.
    project: str = "trainshed"
    #: The buckets that are open to the programs of all projects.
    shared: frozenset[str] = frozenset()
    #: The bucket in which that project's code is staged; those of further projects are named after it.
    default: str = DEFAULT_BUCKET


PLAIN = BucketRules()
"""Every bucket belongs to the service's own project."""


def check_names(text: str) -> None:
    """Raise ValueError unless the text is a list of bucket names with commas in between."""
    for name in names_of(text):
        try:
            validate_bucket_name(name)
        except BucketsError as failure:
            raise ValueError(failure.message) from failure


def names_of(text: str) -> Iterator[str]:
    """Return the names in a list with commas in between."""
    return filter(None, (part.strip() for part in text.split(",")))


class BucketSetup(Struct, frozen=True):
    """What a bucket process is told when it starts."""

    #: The directory of the objects.
    root: str
    #: Path of the Unix socket for the API's gateway; "" = none.
    gateway: str = ""
    #: Path of the Unix socket for the relays of replicas; "" = none.
    replicas: str = ""
    #: The address of the TCP port; "" = there is none.
    host: str = ""
    #: The TCP port; 0 = any free one.
    port: int = 0
    #: A second port, which speaks TLS.
    tls_port: int = 0
    #: PEM file for `tls_port`; `key` likewise; "" = there is no such port.
    certificate: str = ""
    key: str = ""
    #: Whether `port` speaks TLS, too, and plain HTTP only with this machine.
    tls: bool = False
    #: The service's token file.
    tokens: str = ""
    #: The Unix socket at which the API process listens for programs; "" = ended programs are not recognised.
    service: str = ""
    #: The host names by which it may be called there.
    hosts: Hosts = field(default_factory=Hosts)
    rules: BucketRules = field(default_factory=BucketRules)
    #: Seconds without a connection after which the process ends, with status 0; 0 = never.
    linger: float = 0

    def encode(self) -> str:
        """Returns the setup as text for `decode`."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> BucketSetup:
        """Returns the setup that `encode` was called on. Raises ValueError."""
        return msgspec.json.decode(text, type=BucketSetup)
