"""What the operator's configuration says of the buckets, and what a bucket process is told when it starts.
Pure.

Holds no secret: `BucketSetup` stands on a command line.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from trainshed.httpd.hosts import Hosts

LOCAL, S3, GCS = "local", "s3", "gcs"
STORES = (LOCAL, S3, GCS)


class BucketTable(Struct, frozen=True):
    """One `[[buckets]]` table. The names that end in `_env` are those of environment variables of the
    service, "" = as the store's own tools find their credentials."""

    name: str
    #: Where its objects lie.
    store: str = LOCAL
    #: Its name there, in a store that is not local; "" = the same.
    bucket: str = ""
    #: What all objects' names begin with there.
    prefix: str = ""
    #: Of the store; "" = the public one.
    endpoint: str = ""
    #: Of the store; "" = none is named.
    region: str = ""
    #: Whose it is; "" = the service's own.
    project: str = ""
    #: Open to the programs of all projects.
    shared: bool = False
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    service_account_env: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether its objects lie anywhere but on the service's own disk."""
        return self.store != LOCAL


class BucketRules(Struct, frozen=True):
    """What the configuration says of all buckets."""

    #: Whose buckets are that name none.
    project: str = "trainshed"
    #: Those that are open to the programs of all projects.
    shared: frozenset[str] = frozenset()
    tables: tuple[BucketTable, ...] = ()

    def table(self, name: str) -> BucketTable | None:
        """What the configuration says of a bucket."""
        return next((table for table in self.tables if table.name == name), None)

    def is_remote(self, name: str) -> bool:
        """Whether a bucket's objects lie elsewhere."""
        table = self.table(name)
        return table is not None and table.is_remote


PLAIN = BucketRules()
"""Every bucket is the service's own project's, and lies here."""


class BucketSetup(Struct, frozen=True):
    """What a bucket process is told when it starts."""

    #: Directory of the objects.
    root: str
    #: Path of the Unix socket for the API's gateway; "" = none.
    gateway: str = ""
    #: Path of the Unix socket for the relays of replicas; "" = none.
    replicas: str = ""
    #: Of the TCP port; "" = there is none.
    host: str = ""
    #: 0 = any free one.
    port: int = 0
    #: The second port, which speaks TLS.
    tls_port: int = 0
    #: PEM file for `tls_port`, as is `key`; "" = there is no such port.
    certificate: str = ""
    key: str = ""
    #: `port` speaks TLS, too, and plain HTTP with this machine alone.
    tls: bool = False
    #: The service's token file.
    tokens: str = ""
    #: Unix socket at which the API process hears programs; "" = nobody says whether a program is over.
    service: str = ""
    #: Who comes by the TCP port need not say who he is.
    anonymous: bool = False
    #: By which names it may be called there.
    hosts: Hosts = field(default_factory=Hosts)
    rules: BucketRules = field(default_factory=BucketRules)
    #: Seconds without a connection after which it ends by itself, with status 0; 0 = never.
    linger: float = 0

    def encode(self) -> str:
        """As text, for `decode`."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> BucketSetup:
        """What `encode` made. Raises ValueError."""
        return msgspec.json.decode(text, type=BucketSetup)
