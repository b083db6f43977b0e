"""`du` prints the sizes of objects, and the total sizes below prefixes and buckets."""

import fnmatch
import sys

from trainshed_gsutil import sizes, urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Entry, Expander
from trainshed_gsutil.options import Options
from trainshed_gsutil.urls import Url


def run(context: Context) -> int:
    options, given = context.parsed("0ace:hsX:")
    _Usage(context, options).show(given or ["gs://"])
    return 0


class _Usage:
    def __init__(self, context: Context, options: Options) -> None:
        self._expander = Expander(context.storage)
        self._output = context.output
        self._summary = options.has("s")
        self._total = options.has("c")
        self._readable = options.has("h")
        self._end = "\0" if options.has("0") else "\n"
        self._excluded = options.values("e")
        for path in options.values("X"):
            with sys.stdin if path == "-" else open(path) as file:
                self._excluded += [line.strip() for line in file]

    def show(self, given: "list[str]") -> None:
        total, unmatched = 0, False
        for text in given:
            url = urls.parse(text)
            if not url.is_cloud:
                raise CommandFailure("Only cloud URLs are supported for du")
            tops = [url]
            if url.is_provider or url.is_bucket:
                tops = [Url(name, "") for name in self._expander.buckets(url)]
            for top in tops:
                matched = False
                size = 0
                for entry in self._expander.entries(top):
                    matched = True
                    size += self._size(entry)
                unmatched |= not matched and top.is_object and urls.has_wildcard(text)
                total += size
                if self._summary:
                    self._line(size, str(top).rstrip("/"))
        if self._total:
            self._line(total, "total")
        if unmatched and not self._excluded:
            raise CommandFailure("One or more URLs matched no objects.")

    def _size(self, entry: Entry) -> int:
        """Returns the bytes of an object, or of everything below a prefix, and prints them on the way."""
        if any(fnmatch.fnmatch(str(entry.url), pattern) for pattern in self._excluded):
            return 0
        if not entry.is_container:
            size = int((entry.resource or {})["size"])
        else:
            size = sum(self._size(inner) for inner in self._expander.level(entry.url))
        if not self._summary:
            self._line(size, str(entry.url))
        return size

    def _line(self, size: int, name: str) -> None:
        shown = sizes.readable(size) if self._readable else str(size)
        self._output.result("%-11s  %s" % (shown, name), end=self._end)
