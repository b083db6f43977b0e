"""Listing a bucket in a store elsewhere: its own listing, cut into the pages of the public API. Blocking.

A level of directories is asked for as such, which costs the store little however much lies below it; everything else
is read in the order of the names, from the page's first one on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainshed.buckets.globs import Search, compile_glob
from trainshed.buckets.listing import common_prefix, encode_token, floor_of
from trainshed.buckets.port import MAX_RESULTS, Page, Query
from trainshed.buckets.records import ObjectRecord
from trainshed.buckets.remote_access import all_of, level_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore


def list_page(
    store: ObjectStore, query: Query, record: Callable[[ObjectMeta], ObjectRecord]
) -> Page:
    """One page; raises ``InvalidRequest`` (token, glob), and what the store's library raises."""
    limit = max(1, min(query.max_results, MAX_RESULTS))
    glob = compile_glob(query.match_glob) if query.match_glob else None
    objects: list[tuple[str, ObjectRecord]] = []
    prefixes: list[str] = []
    search = Search(glob)
    for name, meta in _entries(store, query, is_level=query.delimiter == "/" and glob is None):
        if query.end_offset and name.encode() >= query.end_offset.encode():
            break
        if search.is_over():
            return Page(objects, prefixes, encode_token(name.encode()))
        if not search.passes(name):
            continue
        summed = name if meta is None else common_prefix(name, query)
        if summed is not None and prefixes and prefixes[-1] == summed:
            continue
        if len(objects) + len(prefixes) >= limit:
            return Page(objects, prefixes, encode_token(name.encode()))
        if summed is not None:
            prefixes.append(summed)
        elif meta is not None:
            objects.append((name, record(meta)))
    return Page(objects, prefixes, "")


def _entries(
    store: ObjectStore, query: Query, *, is_level: bool
) -> Iterator[tuple[str, ObjectMeta | None]]:
    """Names from the page's first one on, in order, each with its object; a common prefix has none."""
    floor = floor_of(query)
    for name, meta in _level(store, query) if is_level else _all(store, query, floor):
        beyond = name.encode() >= floor or (meta is None and floor.startswith(name.encode()))
        if beyond and name.startswith(query.prefix):
            yield name, meta


def _level(store: ObjectStore, query: Query) -> Iterator[tuple[str, ObjectMeta | None]]:
    objects, directories = level_of(store, _directory(query.prefix))
    level: dict[str, ObjectMeta | None] = {f"{name}/": None for name in directories}
    level.update((meta["path"], meta) for meta in objects)
    yield from sorted(level.items(), key=lambda entry: entry[0].encode())


def _all(store: ObjectStore, query: Query, floor: bytes) -> Iterator[tuple[str, ObjectMeta]]:
    # The store begins behind the name that it is given, and the page's first name belongs to it.
    before = floor.decode("utf-8", "ignore")[:-1].rstrip("/")
    offset = before if before and before.isprintable() and "//" not in before else None
    for meta in all_of(store, _directory(query.prefix), offset):
        yield meta["path"], meta


def _directory(prefix: str) -> str | None:
    """The directory in which everything with a prefix lies; None is the whole bucket."""
    above = prefix.rpartition("/")[0]
    return above or None
