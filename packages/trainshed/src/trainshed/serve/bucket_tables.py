"""Converts the settings about buckets into rules for the bucket process, and checks `[[buckets]]` tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from trainshed.buckets.errors import BucketsError
from trainshed.buckets.names import validate_bucket_name
from trainshed.buckets.setup import GCS, LOCAL, S3, STORES, BucketRules, BucketTable

_FIELDS = BucketTable.__annotations__
_S3_ONLY = ("access_key_env", "secret_key_env", "session_token_env")
_REMOTE_ONLY = ("bucket", "prefix", "endpoint", "region", *_S3_ONLY, "service_account_env")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def bucket_tables(rows: Sequence[dict[str, Any]]) -> tuple[BucketTable, ...]:
    """Return the tables that were read from TOML. Raises ValueError with a line for each fault."""
    wrong: list[str] = []
    tables: list[BucketTable] = []
    for number, row in enumerate(rows):
        faults = list(_faults(row))
        if faults:
            wrong += [f"buckets[{number}].{fault}" for fault in faults]
        else:
            tables.append(BucketTable(**row))
    names = [table.name for table in tables]
    wrong += [
        f"buckets: {name!r} has two tables"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(tables)


def check_names(text: str) -> None:
    """Raise ValueError unless the text is a list of bucket names with commas in between."""
    for name in names_of(text):
        if fault := _name_fault(name):
            raise ValueError(fault)


def names_of(text: str) -> Iterator[str]:
    """Return the names in a list with commas in between."""
    return filter(None, (part.strip() for part in text.split(",")))


def bucket_rules(project: str, shared: str, tables: tuple[BucketTable, ...]) -> BucketRules:
    """Return the rules that follow from the settings of these names."""
    return BucketRules(project, frozenset(names_of(shared)), tables)


def cannot_serve(tables: Iterable[BucketTable], local: Iterable[str]) -> str:
    """Return why these tables cannot be served, and what to do; "" if they can. `local`: buckets on the
    service's own disk."""
    remote = [table for table in tables if table.is_remote]
    if remote and find_spec("obstore") is None:
        return (
            f"The bucket {remote[0].name!r} lies in a store of the kind {remote[0].store}, and the library "
            "that reaches it is not installed. Install it: pip install 'trainshed[remote]'"
        )
    here = set(local)
    for table in remote:
        if table.name in here:
            return (
                f"The bucket {table.name!r} has a [[buckets]] table that says it lies elsewhere, and a "
                "directory of our own with objects. Give the table another name, or move the directory "
                "away."
            )
        for key in (*_S3_ONLY, "service_account_env"):
            variable = str(getattr(table, key))
            if variable and not os.environ.get(variable):
                return (
                    f"The bucket {table.name!r} takes its credentials from the environment variable "
                    f"{variable} ({key}), which is not set. Set it for the service."
                )
    return ""


def _faults(row: dict[str, Any]) -> Iterator[str]:
    for key, value in row.items():
        if key not in _FIELDS:
            yield f"{key}: unknown; the keys are {', '.join(_FIELDS)}"
        elif not isinstance(value, bool if _FIELDS[key] == "bool" else str):
            yield f"{key}: {value!r} is not {'true or false' if _FIELDS[key] == 'bool' else 'a text'}"
    texts = {key: str(value) for key, value in row.items() if value and key in _FIELDS}
    if fault := _name_fault(texts.get("name", "")):
        yield f"name: {fault}"
    store = texts.get("store", LOCAL)
    if store not in STORES:
        yield f"store: {store!r} is not one of {', '.join(STORES)}"
        return
    foreign = {LOCAL: _REMOTE_ONLY, S3: ("service_account_env",), GCS: (*_S3_ONLY, "region")}[store]
    for key in foreign:
        if key in texts:
            yield f"{key}: has no meaning for a bucket of the kind {store}; leave it out"
    for key in (*_S3_ONLY, "service_account_env"):
        if key in texts and not _VARIABLE.fullmatch(texts[key]):
            # Does not show the value, which may be the secret itself.
            yield (
                f"{key}: is not the name of an environment variable; the secret itself does not stand in a "
                "file"
            )
    if bool(texts.get("access_key_env")) != bool(texts.get("secret_key_env")):
        yield "access_key_env: goes together with secret_key_env; give both, or neither"
    endpoint = urlsplit(texts.get("endpoint", "http://unset"))
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        yield f"endpoint: {texts['endpoint']!r} is not of the form https://HOST:PORT"


def _name_fault(name: str) -> str:
    try:
        validate_bucket_name(name)
    except BucketsError as failure:
        return failure.message
    return ""
