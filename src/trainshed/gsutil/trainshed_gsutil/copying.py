"""Runs a whole `cp` or `mv`: finds each source's place, copies, skips, and reports what failed."""

import csv
import os
import threading
import time
from typing import NamedTuple

from trainshed_gsutil import naming, properties, sizes, transfer, urls, work
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure, Failure, ServiceFailure
from trainshed_gsutil.expansion import Expander, Found
from trainshed_gsutil.naming import Destination
from trainshed_gsutil.options import Options
from trainshed_gsutil.transfer import Treatment
from trainshed_gsutil.urls import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Sequence

    Resource = dict[str, Any]


class CopyOptions(NamedTuple):
    """The options of `cp`."""

    treatment: Treatment
    recursive: bool = False
    keep_existing: bool = False
    go_on: bool = False
    skip_links: bool = False
    say_version: bool = False
    manifest: str = ""

    @classmethod
    def of(cls, options: Options, headers: "Mapping[str, str]") -> "CopyOptions":
        endings = [ending for text in options.values("z") for ending in text.split(",")]
        zipped = [""] if options.has("Z") else ["." + e.strip().lstrip(".") for e in endings if e]
        return cls(
            Treatment(
                headers,
                tuple(zipped),
                options.value("s"),
                keep_posix=options.has("P"),
            ),
            recursive=options.has("r", "R"),
            keep_existing=options.has("n"),
            go_on=options.has("c"),
            skip_links=options.has("e"),
            say_version=options.has("v"),
            manifest=options.value("L"),
        )


class Copier:
    """Copies the sources of one command. `command`: cp or mv."""

    def __init__(self, context: Context, options: CopyOptions, command: str) -> None:
        self._context = context
        self._output = context.output
        self._options = options
        self._command = command
        self._moving = command == "mv"
        self._manifest = Manifest(options.manifest)
        self._lock = threading.Lock()
        self._failures = work.FailureCounter(context.output)
        self._objects = 0
        self._bytes = 0

    def copy(self, given: "Sequence[str]", to: str) -> None:
        """Copy the sources. Raises Failure; with the option to continue only after all others are copied."""
        parallel = self._context.asked.parallel
        if parallel and any(urls.parse(text).is_stream for text in given):
            raise CommandFailure("Cannot upload from a stream when using gsutil -m option.")
        go_on = parallel or self._options.go_on
        expander = Expander(
            self._context.storage, skip_links=self._options.skip_links, skipped=self._link
        )
        destination = expander.destination(to)
        found: "Iterable[Found]" = expander.sources(
            given,
            recursive=self._options.recursive or self._moving,
            missing=self._failures.add if go_on else None,
            omitted=lambda entry: self._output.error(
                'Omitting %s "%s". (Did you mean to do %s -r?)'
                % ("prefix" if entry.url.is_cloud else "directory", entry.url, self._command)
            ),
        )
        if destination.url.is_cloud:
            # List all sources first: copies may appear below them meanwhile.
            found = list(found)
        seen = 0

        def counted() -> "Iterable[Found]":
            nonlocal seen
            for each in found:
                seen += 1
                yield each

        work.do_each(
            counted(),
            lambda each: self._one(each, destination),
            parallel=parallel,
            failed=self._failures.add if go_on else None,
        )
        failures = self._failures.count
        if failures:
            raise CommandFailure(
                "%d file%s/object%s could not be transferred."
                % ((failures,) + ("" if failures == 1 else "s",) * 2)
            )
        if not seen:
            raise CommandFailure("No URLs matched. Do the files you're operating on exist?")
        if self._objects:
            moved = " " if self._moving and not self._bytes else "/%s" % sizes.precise(self._bytes)
            self._output.note(
                "\nOperation completed over %d objects%s." % (self._objects, moved.strip())
            )

    def _one(self, found: Found, destination: Destination) -> None:
        source = found.source
        if source.is_one_of_many:
            naming.must_be_container(destination, self._command)
        if source.found.is_placeholder or self._manifest.has(str(source.found)):
            return
        recursive = self._options.recursive or (self._moving and source.in_container)
        target = naming.target_of(source, destination, recursive)
        if recursive and not _lies_in(destination.url, target):
            self._output.error(
                "Skipping copy of source URL %s because it would be copied outside the expected "
                "destination directory: %s." % (source.found, os.path.abspath(destination.url.name))
            )
            return
        if source.found._replace(generation="") == target:
            raise CommandFailure(
                '%s: "%s" and "%s" are the same file - abort.'
                % (self._command, source.found, target)
            )
        started = time.time()
        try:
            done = self._transfer(found, target)
        except (Failure, OSError) as failure:
            self._manifest.add(
                str(source.found), str(target), started, "error", description=str(failure)
            )
            raise
        if done is None:
            self._manifest.add(str(source.found), str(target), started, "skip")
            return
        size, md5 = done
        self._manifest.add(str(source.found), str(target), started, "OK", size=size, md5=md5)
        with self._lock:
            self._objects += 1
            self._bytes += size
        if self._moving:
            self._remove(source.found)

    def _transfer(self, found: Found, target: Url) -> "tuple[int, str] | None":
        """Copy one source. Returns bytes and MD5; None if the target was to be kept."""
        storage, how = self._context.storage, self._options.treatment
        source, resource = found.source.found, found.resource
        only: "dict[str, str]" = {}
        if self._options.keep_existing:
            if self._is_there(target):
                self._output.note(f"Skipping existing item: {target}")
                return None
            only["ifGenerationMatch"] = "0"
        self._output.note("Copying %s..." % self._described(source, resource, target))
        made: "Resource" = {}
        try:
            if resource is not None:
                if target.is_cloud:
                    made = transfer.copy(storage, resource, target, how, **only)
                else:
                    transfer.download(storage, resource, target.name, how)
                    made = resource
            elif target.is_cloud:
                made = transfer.upload(storage, source.name, target, how, **only)
            else:
                transfer.copy_file(source.name, target.name, how)
                made = {"size": os.path.getsize(target.name)}
        except ServiceFailure as failure:
            if only and failure.status == 412:
                self._output.note(f"Rejected (noclobber): {target}")
                return None
            raise
        if self._options.say_version and target.is_cloud:
            self._output.note("Created: %s#%s" % (target, made["generation"]))
        return int(made["size"]), made.get("md5Hash", "")

    def _is_there(self, target: Url) -> bool:
        if target.is_cloud:
            return self._context.storage.object(target.bucket or "", target.name) is not None
        return os.path.exists(target.name)

    def _described(self, source: Url, resource: "Resource | None", target: Url) -> str:
        if source.is_stream:
            return "from <STDIN>"
        if not target.is_cloud:
            return str(source)
        if resource is not None:
            kind = resource.get("contentType", properties.DEFAULT_TYPE)
        else:
            given = properties.of_headers(self._options.treatment.headers)
            kind = given.get("contentType") or properties.content_type_of(source.name)
        return "%s [Content-Type=%s]" % (source, kind)

    def _remove(self, source: Url) -> None:
        self._output.note(f"Removing {source}...")
        if source.is_cloud:
            self._context.storage.remove(source.bucket or "", source.name, {})
        else:
            os.unlink(source.name)

    def _link(self, path: str) -> None:
        self._output.note(f"Skipping symbolic link {path}")


def _lies_in(directory: Url, target: Url) -> bool:
    """Whether the target lies in the directory, although names may hold `..`."""
    if target.is_cloud:
        return True
    above = os.path.abspath(directory.name)
    return os.path.commonpath([above, os.path.abspath(target.name)]) == above


_COLUMNS = [
    "Source",
    "Destination",
    "Start",
    "End",
    "Md5",
    "UploadId",
    "Source Size",
    "Bytes Transferred",
    "Result",
    "Description",
]


class Manifest:
    """The log file of option -L. `path`: "" = none is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._done: "set[str]" = set()
        if not path:
            return
        if os.path.exists(path):
            with open(path, newline="") as file:
                rows = csv.DictReader(file)
                self._done = {row["Source"] for row in rows if row["Result"] in ("OK", "skip")}
        else:
            self._append(_COLUMNS)

    def has(self, source: str) -> bool:
        """Whether an earlier command copied this source."""
        return source in self._done

    def add(
        self,
        source: str,
        target: str,
        started: float,
        result: str,
        *,
        size: int = 0,
        md5: str = "",
        description: str = "",
    ) -> None:
        """Add a line. `result`: OK, skip or error. `started`: seconds since the epoch."""
        if not self._path:
            return
        moved = size if result == "OK" else 0
        said = " ".join(description.split())
        times = [_stamp(started), _stamp(time.time())]
        self._append([source, target, *times, md5, "", size, moved, result, said])

    def _append(self, row: "list[Any]") -> None:
        with self._lock, open(self._path, "a", newline="") as file:
            csv.writer(file).writerow(row)


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return "%s.%06dZ" % (whole, seconds % 1 * 1e6)
