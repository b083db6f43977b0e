"""`rm` removes objects; with -r everything below prefixes, and a bucket itself."""

import sys

from trainshed_gsutil import properties, urls, work
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure, ServiceFailure
from trainshed_gsutil.expansion import Expander, Found


def run(context: Context) -> int:
    options, given = context.parsed("afIrR")
    if options.has("I"):
        if given:
            raise CommandFailure("No arguments allowed with the -I flag.")
        given = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    elif not given:
        raise CommandFailure("The rm command (without -I) expects at least one URL.")
    for text in given:
        if not urls.parse(text).is_cloud:
            raise CommandFailure(
                '"rm" command does not support "file://" URLs. Did you mean to use a gs:// URL?'
            )
    removal = _Removal(context)
    removal.remove(given, recursive=options.has("r", "R"), go_on=options.has("f"))
    return 0


class _Removal:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._conditions = properties.conditions_of(context.asked.headers)
        self._failures = work.FailureCounter(context.output)

    def remove(self, given: "list[str]", *, recursive: bool, go_on: bool) -> None:
        storage, parallel = self._context.storage, self._context.asked.parallel
        expander = Expander(storage)
        failed = self._failures.add if go_on or parallel else None
        buckets: "list[str]" = []
        rest = list(given)
        if recursive:
            whole = [text for text in given if urls.parse(text).is_bucket]
            buckets = [name for text in whole for name in expander.buckets(urls.parse(text))]
            rest = [text for text in given if text not in whole]
            for bucket in buckets:
                storage.bucket(bucket)
                entries = expander.below(urls.Url(bucket, ""))
                work.do_each(
                    entries,
                    lambda entry: self._one(entry.url),
                    parallel=parallel,
                    failed=failed,
                )
        omitted: "list[urls.Url]" = []
        found = expander.sources(
            rest,
            recursive=recursive,
            missing=failed,
            omitted=lambda entry: omitted.append(entry.url),
        )
        # Removing objects while they are listed is safe: each page begins behind a name.
        work.do_each(found, self._found, parallel=parallel, failed=failed)
        for url in omitted:
            self._context.output.error(
                'Omitting %s "%s". (Did you mean to do rm -r?)'
                % ("bucket" if url.is_bucket else "prefix", url)
            )
        if omitted and not recursive and not go_on:
            raise CommandFailure("No URLs matched. Do the files you're operating on exist?")
        for bucket in buckets:
            self._context.output.note(f"Removing gs://{bucket}/...")
            storage.remove_bucket(bucket)
        if self._failures.count:
            raise CommandFailure("%d files/objects could not be removed." % self._failures.count)

    def _found(self, found: Found) -> None:
        self._one(found.source.found)

    def _one(self, url: urls.Url) -> None:
        self._context.output.note(f"Removing {url}...")
        conditions = dict(self._conditions)
        if url.generation:
            conditions["generation"] = url.generation
        try:
            self._context.storage.remove(url.bucket or "", url.name, conditions)
        except ServiceFailure as failure:
            if failure.status != 404:
                raise
            self._context.output.note(f"Cannot find {url}")
