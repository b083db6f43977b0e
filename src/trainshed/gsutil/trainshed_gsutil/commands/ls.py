"""`ls` lists buckets, objects and prefixes."""

from trainshed_gsutil import describing, sizes, urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Entry, Expander
from trainshed_gsutil.options import Options
from trainshed_gsutil.urls import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable


def run(context: Context) -> int:
    options, given = context.parsed("aebdlLhp:rR")
    _Listing(context, options, many=len(given) > 1).show(given or ["gs://"])
    return 0


class _Listing:
    def __init__(self, context: Context, options: Options, *, many: bool) -> None:
        self._print = context.output.result
        self._options = options
        self._long = options.has("l")
        self._full = options.has("L")
        self._recursive = options.has("r", "R")
        self._many = many
        self._storage = context.of_project(options.value("p"))
        self._expander = Expander(self._storage)
        self._objects = 0
        self._prefixes = 0
        self._bytes = 0

    def show(self, given: "list[str]") -> None:
        unmatched = False
        for text in given:
            url = urls.parse(text)
            if not url.is_cloud:
                raise CommandFailure("Only cloud URLs are supported for ls")
            before = self._objects + self._prefixes
            if url.is_provider:
                for resource in self._storage.buckets():
                    self._print("gs://%s/" % resource["name"])
            elif url.is_bucket and self._options.has("b"):
                for name in self._expander.buckets(url):
                    self._bucket(name)
            else:
                self._one(url)
                unmatched |= url.is_object and before == self._objects + self._prefixes
        if self._objects and (self._long or self._full):
            total = sizes.readable(self._bytes)
            self._print("TOTAL: %d objects, %d bytes (%s)" % (self._objects, self._bytes, total))
        if unmatched:
            raise CommandFailure("One or more URLs matched no objects.")

    def _bucket(self, name: str) -> None:
        resource = self._storage.bucket(name)
        self._print(f"gs://{name}/" + (" :" if self._full else ""))
        if self._full:
            for label, value in (
                ("Storage class:\t\t\t", resource.get("storageClass")),
                ("Location type:\t\t\t", resource.get("locationType")),
                ("Location constraint:\t\t", resource.get("location")),
                ("Time created:\t\t\t", resource.get("timeCreated")),
                ("Metageneration:\t\t\t", resource.get("metageneration")),
            ):
                if value is not None:
                    self._print("\t%s%s" % (label, value))

    def _one(self, url: Url) -> None:
        if url.is_bucket or self._recursive:
            if url.is_bucket and self._many:
                self._print(f"{url}:")
            self._level(self._expander.entries(url), line_before=False)
            return
        entries = list(self._expander.entries(url._replace(name=urls.without_slash(url.name))))
        anything = False
        for entry in entries:
            if not entry.is_container:
                self._object(entry)
            elif self._options.has("d"):
                self._prefix(entry)
            else:
                if anything:
                    self._print("")
                if len(entries) > 1:
                    self._print(f"{entry.url}:")
                self._level(self._expander.level(entry.url), line_before=True)
            anything = True

    def _level(self, entries: "Iterable[Entry]", *, line_before: bool) -> None:
        for entry in entries:
            if not entry.is_container:
                self._object(entry)
            elif self._recursive:
                if line_before:
                    self._print("")
                line_before = True
                self._print(f"{entry.url}:")
                self._prefixes += 1
                self._level(self._expander.level(entry.url), line_before=True)
            else:
                self._prefix(entry)

    def _prefix(self, entry: Entry) -> None:
        self._prefixes += 1
        self._print((" " * 33 if self._long or self._full else "") + str(entry.url))

    def _object(self, entry: Entry) -> None:
        resource = entry.resource or {}
        self._objects += 1
        self._bytes += int(resource["size"])
        versioned = self._options.has("a")
        url = entry.url._replace(generation=str(resource["generation"]) if versioned else "")
        if self._full:
            for line in describing.lines(str(url), resource):
                self._print(line)
            self._print("    ACL:                    []")
        elif self._long:
            size = int(resource["size"])
            shown = sizes.readable(size) if self._options.has("h") else str(size)
            behind = "  metageneration=%s" % resource["metageneration"] if versioned else ""
            if self._options.has("e"):
                behind += "  etag=%s" % resource["etag"]
            created = describing.second_of(resource["timeCreated"])
            self._print("%10s  %s  %s%s" % (shown, created, url, behind))
        else:
            self._print(str(url))
