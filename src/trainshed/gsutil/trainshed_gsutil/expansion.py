"""Expands URLs with wildcards, buckets, prefixes and directories into what they name in storage and on
disk."""

import fnmatch
import glob
import itertools
import os
import re
from typing import NamedTuple

from trainshed_gsutil import urls
from trainshed_gsutil.errors import CommandFailure, ServiceFailure, nothing_matched
from trainshed_gsutil.naming import Destination, Source
from trainshed_gsutil.storage import Storage
from trainshed_gsutil.urls import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Sequence, TypeVar

    Resource = dict[str, Any]
    T = TypeVar("T")


class Entry(NamedTuple):
    """Something that a URL names."""

    url: Url
    #: Whether it is a prefix, a bucket or a directory.
    is_container: bool = False
    #: The object's properties.
    resource: "Resource | None" = None


class Found(NamedTuple):
    """One source of a command; for an object also its properties."""

    source: Source
    resource: "Resource | None"


class Expander:
    """Expands the URLs of one command. `skip_links`: symbolic links to files are left out, and `skipped` is
    called with each."""

    def __init__(
        self,
        storage: Storage,
        *,
        skip_links: bool = False,
        skipped: "Callable[[str], None]" = lambda path: None,
    ) -> None:
        self._storage = storage
        self._skip_links = skip_links
        self._skipped = skipped

    # --- one URL ---

    def entries(self, url: Url) -> "Iterator[Entry]":
        """Yields what a URL matches on its own level: a bucket's content, an object, a prefix. Raises
        ServiceFailure."""
        if not url.is_cloud:
            return self._files(url.name)
        return self._cloud(url)

    def objects(self, url: Url) -> "Iterator[Entry]":
        return (entry for entry in self.entries(url) if not entry.is_container)

    def buckets(self, url: Url) -> "Iterator[str]":
        """Yields the names of the buckets that a URL matches."""
        name = url.bucket or "*"
        if not urls.has_wildcard(name):
            yield name
            return
        pattern = re.compile(fnmatch.translate(name))
        for resource in self._storage.buckets():
            if pattern.match(resource["name"]):
                yield resource["name"]

    def below(self, url: Url, *, recursive: bool = True) -> "Iterator[Entry]":
        """Yields every object below a prefix, or every file below a directory; of a directory only its own
        files if not `recursive`."""
        if url.is_cloud:
            prefix = url.name if not url.name or url.name.endswith("/") else url.name + "/"
            for name, resource in self._storage.objects(url.bucket or "", prefix):
                yield Entry(Url(url.bucket, name), False, resource)
        else:
            yield from self._walk(url.name, "*", recursive=recursive)

    def level(self, url: Url) -> "Iterator[Entry]":
        """Yields the objects and prefixes on the first level of a bucket, or of a prefix that ends with a
        slash."""
        for name, resource in self._storage.objects(url.bucket or "", url.name, "/"):
            yield Entry(Url(url.bucket, name), resource is None, resource)

    def _cloud(self, url: Url) -> "Iterator[Entry]":
        for bucket in self.buckets(url):
            if url.is_bucket or url.is_provider:
                yield from self.level(Url(bucket, ""))
                continue
            if not urls.has_wildcard(url.name):
                resource = self._object(bucket, url)
                if resource is not None:
                    yield Entry(url._replace(bucket=bucket), False, resource)
                    continue
                if url.generation:
                    continue
            yield from self._matching(bucket, urls.without_slash(url.name) or "/")

    def _object(self, bucket: str, url: Url) -> "Resource | None":
        try:
            return self._storage.object(bucket, url.name, url.generation)
        except ServiceFailure as failure:
            if failure.status == 403:
                return None  # The caller may not read the object; a listing has its properties as well.
            raise

    def _matching(self, bucket: str, wildcard: str) -> "Iterator[Entry]":
        waiting = [wildcard]
        while waiting:
            step = urls.step(waiting.pop(0))
            for name, resource in self._storage.objects(bucket, step.prefix, step.delimiter):
                if resource is None:
                    level = urls.without_slash(name)
                    if not step.matches(level):
                        continue
                    if step.rest:
                        waiting.append("%s/%s" % (level, step.rest))
                    else:
                        yield Entry(Url(bucket, name), True)
                elif not step.rest and step.matches(name):
                    yield Entry(Url(bucket, name), False, resource)

    def _files(self, path: str) -> "Iterator[Entry]":
        split = urls.split_path(path)
        if split is not None:
            directory, pattern = split
            yield from self._walk(directory or (path.startswith("/") and "/") or ".", pattern)
            return
        # A file whose name contains wildcard characters is taken by that name.
        for name in [path] if os.path.lexists(path) else sorted(glob.glob(path)):
            if os.path.isdir(name):
                yield Entry(Url(None, name), True)
            elif not self._left_out(name):
                yield Entry(Url(None, name))

    def _walk(self, directory: str, pattern: str, *, recursive: bool = True) -> "Iterator[Entry]":
        for above, directories, names in os.walk(directory, followlinks=not self._skip_links):
            directories[:] = sorted(directories) if recursive else []
            for name in fnmatch.filter(sorted(names), pattern):
                path = os.path.join(above, name)
                if not self._left_out(path):
                    yield Entry(Url(None, path))

    def _left_out(self, path: str) -> bool:
        if self._skip_links and os.path.islink(path):
            self._skipped(path)
            return True
        return False

    # --- sources of a command ---

    def sources(
        self,
        given: "Sequence[str]",
        *,
        recursive: bool,
        missing: "Callable[[Exception], None] | None" = None,
        omitted: "Callable[[Entry], None]" = lambda entry: None,
    ) -> "Iterator[Found]":
        """Yields every file or object that a command's arguments name. `missing` is called for arguments that
        match nothing; None = raise then. `omitted` is called for containers that are skipped since the
        command is not recursive."""
        many = len(given) > 1
        for text in given:
            url = urls.parse(text)
            if url.is_stream:
                if many:
                    raise CommandFailure(
                        'Multiple URL strings are not supported with streaming ("-") URLs or named pipes.'
                    )
                yield Found(Source(url, url), None)
                continue
            try:
                yield from self._sources_of(text, url, many, recursive, omitted)
            except (CommandFailure, ServiceFailure) as failure:
                if missing is None:
                    raise
                missing(failure)

    def _sources_of(
        self,
        text: str,
        url: Url,
        many: bool,
        recursive: bool,
        omitted: "Callable[[Entry], None]",
    ) -> "Iterator[Found]":
        if url.is_bucket and not recursive:
            tops = iter([Entry(Url(bucket, ""), True) for bucket in self.buckets(url)])
        else:
            tops = self.entries(url)
        count, tops = _counted(tops)
        if not count:
            raise nothing_matched(text)
        top_of_many = many or count > 1
        found = self._flattened(tops, url, recursive, omitted)
        count, found = _counted(found)
        if recursive and not count and not url.is_bucket and url.is_cloud:
            raise nothing_matched(text)
        for entry, in_container in found:
            source = Source(url, entry.url, in_container, many or count > 1, top_of_many)
            yield Found(source, entry.resource)

    def _flattened(
        self,
        tops: "Iterator[Entry]",
        url: Url,
        recursive: bool,
        omitted: "Callable[[Entry], None]",
    ) -> "Iterator[tuple[Entry, bool]]":
        for entry in tops:
            if not entry.is_container:
                yield entry, url.is_bucket
            elif recursive:
                for inner in self.below(entry.url):
                    yield inner, True
            else:
                omitted(entry)

    # --- the destination of a command ---

    def destination(self, text: str) -> Destination:
        """Returns the destination. Raises CommandFailure for a wildcard that matches several URLs, or
        none."""
        if urls.has_wildcard(text):
            matching = list(itertools.islice(self.entries(urls.parse(text)), 2))
            if len(matching) != 1:
                raise CommandFailure(f"Destination ({text}) must match exactly 1 URL")
            (entry,) = matching
            return Destination(entry.url, entry.is_container, entry.is_container)
        url = urls.parse(text)
        if not url.is_cloud:
            directory = os.path.isdir(url.name)
            return Destination(url, directory, directory)
        return Destination(url, url.is_bucket or url.is_placeholder or self._has_below(url))

    def _has_below(self, url: Url) -> bool:
        prefix = url.name.rstrip("/")
        for name, resource in self._storage.objects(url.bucket or "", prefix, "/"):
            if (resource is None and name == prefix + "/") or name == url.name + "_$folder$":
                return True
        return False


def _counted(items: "Iterator[T]") -> "tuple[int, Iterator[T]]":
    """Returns how many items there are (2 stands for more), and an iterator over all of them."""
    first = list(itertools.islice(items, 2))
    return len(first), itertools.chain(first, items)
