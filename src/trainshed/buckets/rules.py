"""Whose the buckets are, and which of them lie elsewhere: what the operator's configuration says of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LOCAL, S3, GCS = "local", "s3", "gcs"
STORES = (LOCAL, S3, GCS)


@dataclass(frozen=True, slots=True)
class BucketTable:
    """One `[[buckets]]` table. `store`: where its objects lie; of a store that is not local: `bucket`, its name there
    ("" = the same), `prefix` that all objects' names begin with there, `endpoint` ("" = the public one), `region`.
    `project`: whose it is ("" = the service's own). The names that end in `_env` are those of environment variables of
    the service, "" = as the store's own tools find their credentials."""

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
