"""Compares two sides for `rsync`: what has to be done for the second one to be like the first."""

import contextlib
import os
from typing import NamedTuple

from trainshed_gsutil import checksums, properties, urls
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Expander
from trainshed_gsutil.storage import Storage
from trainshed_gsutil.urls import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

    Resource = dict[str, Any]


class Item(NamedTuple):
    """A file or object on one side of the comparison."""

    url: Url
    #: Bytes.
    size: int
    #: Seconds since the epoch; None = not recorded.
    mtime: "int | None"
    #: The object's properties; None = it is a file.
    resource: "Resource | None" = None


class Change(NamedTuple):
    """A change of the target that has to be made."""

    #: What is copied to the target; None = the target is removed.
    source: "Url | None"
    target: Url
    resource: "Resource | None" = None

    def remove(self, storage: Storage) -> None:
        """Remove the target; it may be gone already."""
        if self.target.is_cloud:
            storage.remove(self.target.bucket or "", self.target.name, {})
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.target.name)


class Side:
    """A directory or prefix: `top`, and its files or objects by the part of their names below it."""

    def __init__(self, top: Url, items: "dict[str, Item]") -> None:
        self.top = top
        self.items = items

    @classmethod
    def of(cls, storage: Storage, text: str, *, recursive: bool, skip_links: bool) -> "Side":
        url = urls.parse(text)
        if url.is_cloud:
            prefix = url.name.rstrip("/") + "/" if url.name.rstrip("/") else ""
            return cls(
                url._replace(name=prefix), _objects(storage, url.bucket or "", prefix, recursive)
            )
        top = url._replace(name=(url.name.rstrip("/") or "/"))
        return cls(top, _files(Expander(storage, skip_links=skip_links), top.name, recursive))

    def must_exist(self, text: str, *, is_source: bool) -> None:
        """Raises CommandFailure if there is nothing there. As a target, a prefix needs no object below it."""
        if self.top.is_cloud:
            if self.items or not is_source or self.top.is_bucket:
                return
        elif os.path.isdir(self.top.name):
            return
        raise CommandFailure(
            "arg (%s) does not name a directory, bucket, or bucket subdir.\nIf there is an object "
            "with the same path, please "
            "add a trailing\nslash to specify the directory." % text
        )

    def place(self, name: str) -> Url:
        if self.top.is_cloud:
            return self.top._replace(name=self.top.name + name)
        return self.top._replace(name=os.path.join(self.top.name, name))


def changes(
    source: Side,
    target: Side,
    *,
    removing: bool = False,
    by_checksum: bool = False,
    keep_newer: bool = False,
    keep_existing: bool = False,
    excluded: "Callable[[str], bool]" = lambda name: False,
) -> "Iterator[Change]":
    """Yields the changes in the order of names. Files are read only where nothing else tells whether they
    differ."""
    for name in sorted(source.items.keys() | target.items.keys()):
        if excluded(name):
            continue
        ours, theirs = source.items.get(name), target.items.get(name)
        if ours is None:
            if removing:
                yield Change(None, target.place(name))
            continue
        if theirs is not None:
            if keep_existing or _same(ours, theirs, by_checksum):
                continue
            if keep_newer and (theirs.mtime or 0) > (ours.mtime or 0):
                continue
        yield Change(ours.url, target.place(name), ours.resource)


def _same(ours: Item, theirs: Item, by_checksum: bool) -> bool:
    if ours.size != theirs.size:
        return False
    if not by_checksum and ours.mtime is not None and theirs.mtime is not None:
        return ours.mtime == theirs.mtime
    return _checksum(ours, theirs) == _checksum(theirs, ours)


def _checksum(item: Item, other: Item) -> str:
    """Returns the item's checksum, in the kind that both items have."""
    kind = "md5Hash"
    for each in (item, other):
        if each.resource is not None and "md5Hash" not in each.resource:
            kind = "crc32c"
    if item.resource is not None:
        return item.resource.get(kind, "")
    with open(item.url.name, "rb") as file:
        if kind == "md5Hash":
            return checksums.md5_of(file)
        return checksums.crc32c_of(file, checksums.fast_crc32c() or checksums.extended)


def _objects(storage: Storage, bucket: str, prefix: str, recursive: bool) -> "dict[str, Item]":
    items: "dict[str, Item]" = {}
    for name, resource in storage.objects(bucket, prefix, "" if recursive else "/"):
        url = Url(bucket, name)
        # Placeholders of directories are not files of the directory.
        if resource is not None and not url.is_placeholder:
            size, mtime = int(resource["size"]), properties.mtime_of(resource)
            items[name[len(prefix) :]] = Item(url, size, mtime, resource)
    return items


def _files(expander: Expander, top: str, recursive: bool) -> "dict[str, Item]":
    items: "dict[str, Item]" = {}
    for entry in expander.below(Url(None, top), recursive=recursive):
        path = entry.url.name
        if os.path.isfile(path):
            stat = os.stat(path)
            items[os.path.relpath(path, top)] = Item(entry.url, stat.st_size, int(stat.st_mtime))
    return items
