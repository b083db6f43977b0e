"""What the operator's configuration says about the buckets, and what a bucket process is told when it starts.
Pure.

It holds no secret: a `BucketSetup` is visible on a command line.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from trainshed.core.names import DEFAULT_BUCKET
from trainshed.httpd.hosts import Hosts

LOCAL, S3, GCS = "local", "s3", "gcs"
STORES = (LOCAL, S3, GCS)


class BucketTable(Struct, frozen=True):
    """One `[[buckets]]` table. Fields that end in `_env` name environment variables of the service; "" =
    credentials are found as the store's own tools find them."""

    name: str
    #: Where its objects are.
    store: str = LOCAL
    #: Its name in a remote store; "" = the same.
    bucket: str = ""
    #: The prefix of all objects' names in the remote store.
    prefix: str = ""
    #: The remote store's endpoint; "" = the public one.
    endpoint: str = ""
    #: The remote store's region; "" = none is named.
    region: str = ""
    #: The project that it belongs to; "" = the service's own.
    project: str = ""
    #: Whether it is open to the programs of all projects.
    shared: bool = False
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    service_account_env: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether its objects are elsewhere than on the service's own disk."""
        return self.store != LOCAL


class BucketRules(Struct, frozen=True):
    """What the configuration says about all buckets."""

    #: The project of buckets that name none.
    project: str = "trainshed"
    #: The buckets that are open to the programs of all projects.
    shared: frozenset[str] = frozenset()
    tables: tuple[BucketTable, ...] = ()
    #: The bucket in which that project's code is staged; those of further projects are named after it.
    default: str = DEFAULT_BUCKET

    def table(self, name: str) -> BucketTable | None:
        """Returns what the configuration says about a bucket."""
        return next((table for table in self.tables if table.name == name), None)

    def is_remote(self, name: str) -> bool:
        """Whether a bucket's objects are in a remote store."""
        table = self.table(name)
        return table is not None and table.is_remote


PLAIN = BucketRules()
"""Every bucket belongs to the service's own project, and is on this disk."""


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
