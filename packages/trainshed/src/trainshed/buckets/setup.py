"""What the operator's configuration says about the buckets, and what a bucket process is told when it starts.

It holds no secret: a `BucketSetup` is visible on a command line.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from trainshed.buckets.errors import BucketsError
from trainshed.buckets.names import validate_bucket_name
from trainshed.httpd.hosts import Hosts

LOCAL: Final = "local"
S3: Final = "s3"
GCS: Final = "gcs"

_S3_ONLY = ("access_key_env", "secret_key_env", "session_token_env")
_REMOTE_ONLY = ("bucket", "prefix", "endpoint", "region", *_S3_ONLY, "service_account_env")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BucketTable(Struct, frozen=True):
    """One `[[buckets]]` table. Fields that end in `_env` name environment variables of the service; None
    = credentials are found as the store's own tools find them."""

    name: str
    #: Where its objects are.
    store: Literal["local", "s3", "gcs"] = LOCAL
    #: Its name in a remote store; None = the same.
    bucket: str | None = None
    #: The prefix of all objects' names in the remote store.
    prefix: str = ""
    #: The remote store's endpoint; None = the public one.
    endpoint: str | None = None
    #: The remote store's region; None = none is named.
    region: str | None = None
    #: The project that it belongs to; None = the service's own.
    project: str | None = None
    #: Whether it is open to the programs of all projects.
    shared: bool = False
    access_key_env: str | None = None
    secret_key_env: str | None = None
    session_token_env: str | None = None
    service_account_env: str | None = None

    @property
    def is_remote(self) -> bool:
        return self.store != LOCAL

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the table, as `key: words`."""
        try:
            validate_bucket_name(self.name)
        except BucketsError as failure:
            yield f"name: {failure.message}"
        only = {LOCAL: _REMOTE_ONLY, S3: ("service_account_env",), GCS: (*_S3_ONLY, "region")}
        for key in only[self.store]:
            if getattr(self, key):
                yield f"{key}: has no meaning for a bucket of the kind {self.store}; leave it out"
        for key in (*_S3_ONLY, "service_account_env"):
            if not _VARIABLE.fullmatch(getattr(self, key) or "unset"):
                # Does not show the value, which may be the secret itself.
                yield (
                    f"{key}: is not the name of an environment variable; the secret itself does not stand in "
                    "a file"
                )
        if bool(self.access_key_env) != bool(self.secret_key_env):
            yield "access_key_env: goes together with secret_key_env; give both, or neither"
        endpoint = urlsplit(self.endpoint or "http://unset")
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            yield f"endpoint: {self.endpoint!r} is not of the form https://HOST:PORT"


class BucketRules(Struct, frozen=True):
    """What the configuration says about all buckets."""

    #: The project of buckets that name none.
    project: str = "trainshed"
    tables: tuple[BucketTable, ...] = ()


PLAIN = BucketRules()
"""Every bucket belongs to the service's own project, and is on this disk."""


def cannot_serve(tables: Iterable[BucketTable], local: Collection[str]) -> str | None:
    """Return why these tables cannot be served, and what to do; None if they can. `local`: buckets on the
    service's own disk."""
    remote = [table for table in tables if table.is_remote]
    if remote and find_spec("obstore") is None:
        return (
            f"The bucket {remote[0].name!r} lies in a store of the kind {remote[0].store}, and the library "
            "that reaches it is not installed. Install it: pip install 'trainshed[remote]'"
        )
    for table in remote:
        if table.name in local:
            return (
                f"The bucket {table.name!r} has a [[buckets]] table that says it lies elsewhere, and a "
                "directory of our own with objects. Give the table another name, or move the directory "
                "away."
            )
    return None


class BucketSetup(Struct, frozen=True):
    """What a bucket process is told when it starts."""

    #: The directory of the objects.
    root: str
    #: Path of the Unix socket for the API's gateway.
    gateway: str
    #: Path of the Unix socket for the relays of replicas.
    replicas: str
    #: The service's token file.
    tokens: str
    #: The address of the TCP port; None = there is none.
    host: str | None = None
    #: The TCP port; 0 = any free one.
    port: int = 0
    #: A second port, which speaks TLS.
    tls_port: int = 0
    #: PEM file for `tls_port`; `key` likewise; None = there is no such port.
    certificate: str | None = None
    key: str | None = None
    #: Whether `port` speaks TLS, too, and plain HTTP only with this machine.
    tls: bool = False
    #: The Unix socket at which the API process listens for programs; None = ended ones are not recognised.
    service: str | None = None
    #: The host names by which it may be called there.
    hosts: Hosts = field(default_factory=Hosts)
    rules: BucketRules = field(default_factory=BucketRules)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "BucketSetup":
        """Returns the setup that `encode` was called on. Raises ValueError."""
        return msgspec.json.decode(text, type=BucketSetup)
