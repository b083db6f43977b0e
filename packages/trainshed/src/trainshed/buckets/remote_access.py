"""Connects to remote stores, and translates their errors for clients.

The library reads credentials from the environment only. Errors, logs and records never contain them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import GCSStore, S3Store

from trainshed.buckets.errors import (
    BucketsError,
    Forbidden,
    NoSuchBucket,
    Unavailable,
    condition_failed,
    no_such_object,
)
from trainshed.buckets.setup import S3, BucketTable

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_RETRIES: RetryConfig = {"max_retries": 4}
_CLIENT: ClientConfig = {"connect_timeout": "5s", "timeout": "300s"}
_CHUNK = 1000
_DEFAULT_REGION = "us-east-1"
_log = logging.getLogger(__name__)


def connect(table: BucketTable) -> ObjectStore:
    """Return the remote store of a table, without sending a request. Raises `Unavailable` for malformed
    credentials."""
    client: ClientConfig = {**_CLIENT, "allow_http": (table.endpoint or "").startswith("http://")}
    prefix = table.prefix.strip("/") or None
    try:
        if table.store == S3:
            return S3Store(
                table.bucket or table.name,
                prefix=prefix,
                config=_s3(table),
                client_options=client,
                retry_config=_RETRIES,
            )
        config: Any = {"base_url": table.endpoint} if table.endpoint else {}
        if table.service_account_env:
            account = os.environ.get(table.service_account_env, "")
            is_key = account.lstrip().startswith("{")
            config["service_account_key" if is_key else "service_account"] = account
        return GCSStore(
            table.bucket or table.name,
            prefix=prefix,
            config=config,
            client_options=client,
            retry_config=_RETRIES,
        )
    except (BaseError, ValueError, OSError) as error:
        _log.warning("the bucket %s cannot be reached: %s", table.name, type(error).__name__)
        raise Unavailable(
            f"The bucket {table.name} cannot be reached: its [[buckets]] table or its credentials are "
            "malformed. Correct them and restart the service."
        ) from None


def list_all(store: ObjectStore, directory: str | None, offset: str | None = None) -> Iterator[ObjectMeta]:
    """Yield all objects below a directory after `offset`, by name. Pages are requested as needed."""
    # Ignore the library's types, because its type stubs import packages that are not installed.
    lists = cast("Any", obstore).list(store, directory, offset=offset, chunk_size=_CHUNK)
    for block in lists:
        yield from cast("list[ObjectMeta]", block)


def list_level(store: ObjectStore, directory: str | None) -> tuple[list[ObjectMeta], list[str]]:
    """Return the objects in a directory, and the names of its subdirectories."""
    level = cast("Any", obstore).list_with_delimiter(store, directory)
    return list(level["objects"]), list(level["common_prefixes"])


def _s3(table: BucketTable) -> Any:
    config: dict[str, Any] = {"region": table.region or _DEFAULT_REGION}
    if table.endpoint:
        # Put the bucket's name into the path, because self-hosted servers rarely have a host name per bucket.
        config |= {"endpoint": table.endpoint, "virtual_hosted_style_request": False}
    variables = {
        "access_key_id": table.access_key_env,
        "secret_access_key": table.secret_key_env,
        "session_token": table.session_token_env,
    }
    return config | {key: os.environ.get(name, "") for key, name in variables.items() if name}


@contextmanager
def translate_errors(table: BucketTable, name: str | None = None) -> Generator[None]:
    """Translate errors of the library into public errors. `name`: the object of the request."""
    try:
        yield
    except BucketsError:
        raise
    except FileNotFoundError as error:
        if name and "NoSuchBucket" not in str(error):
            raise no_such_object(table.name, name) from None
        raise NoSuchBucket(
            f"The bucket {table.name} is in a remote store, which has no bucket with the name "
            f"{table.bucket or table.name}. Create it there, or correct the [[buckets]] table."
        ) from None
    except (AlreadyExistsError, PreconditionError, NotModifiedError):
        raise condition_failed() from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        _note(table, error)
        raise Forbidden(
            f"The remote store of the bucket {table.name} denies the service this operation. Check the "
            "credentials in its [[buckets]] table and their permissions."
        ) from None
    except (BaseError, OSError, ValueError) as error:
        _note(table, error)
        raise Unavailable(
            f"The remote store of the bucket {table.name} returned an invalid response. Try again. The "
            "service's log has details."
        ) from None


def _note(table: BucketTable, error: Exception) -> None:
    # Log only the first line, which describes request and response. The other lines are internals of the
    # library.
    _log.warning("bucket %s: %s", table.name, str(error).partition("\n")[0][:300])
