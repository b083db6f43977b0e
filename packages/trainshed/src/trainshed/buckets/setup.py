"""The operator's configuration of buckets, and the arguments of a bucket process.

A `BucketSetup` contains no secret, because it is visible on a command line.
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
    """One `[[buckets]]` table. Fields that end in `_env` contain names of the service's environment
    variables. None = the service finds credentials in the same way as the remote store's own tools."""

    name: str
    #: The kind of store that contains the bucket's objects.
    store: Literal["local", "s3", "gcs"] = LOCAL
    #: The bucket's name in the remote store; None = the same name.
    bucket: str | None = None
    #: The prefix of all object names in the remote store.
    prefix: str = ""
    #: The remote store's endpoint; None = the public endpoint.
    endpoint: str | None = None
    #: The remote store's region; None = not set.
    region: str | None = None
    #: The project of the bucket; None = the service's own.
    project: str | None = None
    #: Whether programs of all projects may use the bucket.
    shared: bool = False
    access_key_env: str | None = None
    secret_key_env: str | None = None
    session_token_env: str | None = None
    service_account_env: str | None = None

    @property
    def is_remote(self) -> bool:
        return self.store != LOCAL

    def faults(self) -> Iterator[str]:
        """Yield the errors in the table as `key: description`."""
        try:
            validate_bucket_name(self.name)
        except BucketsError as failure:
            yield f"name: {failure.message}"
        only = {LOCAL: _REMOTE_ONLY, S3: ("service_account_env",), GCS: (*_S3_ONLY, "region")}
        for key in only[self.store]:
            if getattr(self, key):
                yield f"{key}: does not apply to a bucket of the kind {self.store}; leave it out"
        for key in (*_S3_ONLY, "service_account_env"):
            if not _VARIABLE.fullmatch(getattr(self, key) or "unset"):
                # Omit the value, because it may be the secret itself.
                yield (
                    f"{key}: is not the name of an environment variable; do not write the secret itself "
                    "into a file"
                )
        if bool(self.access_key_env) != bool(self.secret_key_env):
            yield "access_key_env: requires secret_key_env; set both or neither"
        endpoint = urlsplit(self.endpoint or "http://unset")
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            yield f"endpoint: {self.endpoint!r} is not of the form https://HOST:PORT"


class BucketRules(Struct, frozen=True):
    """The configuration for all buckets."""

    #: The project of buckets without a configured project.
    project: str = "trainshed"
    tables: tuple[BucketTable, ...] = ()


PLAIN = BucketRules()
"""The default: every bucket belongs to the service's own project and is on the local disk."""


def cannot_serve(tables: Iterable[BucketTable], local: Collection[str]) -> str | None:
    """Return the error message if these tables cannot be served, or None. `local`: names of buckets that have
    a directory on the service's own disk."""
    remote = [table for table in tables if table.is_remote]
    if remote and find_spec("obstore") is None:
        return (
            f"The bucket {remote[0].name!r} is in a store of the kind {remote[0].store}, and its client "
            "library is not installed. Install it: pip install 'trainshed[remote]'"
        )
    for table in remote:
        if table.name in local:
            return (
                f"The bucket {table.name!r} has a [[buckets]] table with a remote store, but also a local "
                "directory with objects. Give the table another name, or move the directory away."
            )
    return None


class BucketSetup(Struct, frozen=True):
    """The arguments of a bucket process."""

    #: The directory of the objects.
    root: str
    #: Path of the Unix socket for the API's gateway.
    gateway: str
    #: Path of the Unix socket for the relays of replicas.
    replicas: str
    #: The service's token file.
    tokens: str
    #: The address of the TCP port; None = no TCP port.
    host: str | None = None
    #: The TCP port; 0 = any free port.
    port: int = 0
    #: A second TCP port, with TLS; 0 = any free port.
    tls_port: int = 0
    #: PEM file with the certificate for `tls_port`; None = no such port. `key`: PEM file with its private
    #: key.
    certificate: str | None = None
    key: str | None = None
    #: Whether `port` also accepts TLS. It then accepts plain HTTP only from this machine.
    tls: bool = False
    #: The API process's Unix socket for programs; None = tokens of programs that have ended are not detected.
    service: str | None = None
    #: The accepted host names.
    hosts: Hosts = field(default_factory=Hosts)
    rules: BucketRules = field(default_factory=BucketRules)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "BucketSetup":
        """Return the setup from a result of `encode`. Raises ValueError."""
        return msgspec.json.decode(text, type=BucketSetup)
