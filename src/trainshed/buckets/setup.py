"""What the operator's configuration says of the buckets, and what a bucket process is told when it starts.
Pure.

Holds no secret: `BucketSetup` stands on a command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from trainshed.httpd.hosts import Hosts

LOCAL, S3, GCS = "local", "s3", "gcs"
STORES = (LOCAL, S3, GCS)


@dataclass(frozen=True, slots=True)
class BucketTable:
    """One `[[buckets]]` table. `store`: where its objects lie; of a store that is not local: `bucket`, its
    name there ("" = the same), `prefix` that all objects' names begin with there, `endpoint` ("" = the public
    one), `region`. `project`: whose it is ("" = the service's own). The names that end in `_env` are those of
    environment variables of the service, "" = as the store's own tools find their credentials."""

    name: str
    store: str = LOCAL
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    project: str = ""
    shared: bool = False
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    service_account_env: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether its objects lie anywhere but on the service's own disk."""
        return self.store != LOCAL


@dataclass(frozen=True, slots=True)
class BucketRules:
    """`project`: whose buckets are that name none. `shared`: open to the programs of all projects."""

    project: str = "trainshed"
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


@dataclass(frozen=True, slots=True)
class BucketSetup:
    """`root`: the directory of the objects. `gateway`, `replicas`: paths of the Unix sockets for the API's
    gateway and for the relays of replicas, "" = none. `host`: of the TCP port, "" = there is none; `port` 0 =
    any free one. `certificate`, `key`: PEM files for a second port, `tls_port`, that speaks TLS; "" = there
    is none. `tls`: `port` speaks it, too, and plain HTTP with this machine alone. `tokens`: the service's
    token file. `service`: the Unix socket at which the API process hears programs, "" = nobody says whether a
    program is over. `anonymous`: who comes by the TCP port need not say who he is. `hosts`: by which names it
    may be called there."""

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
