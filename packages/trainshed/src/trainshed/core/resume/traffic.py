"""A job's accesses to its checkpoint files: where the files are expected, which were written before a fault
and which were read after it."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from trainshed.core.lifecycle.records import Job
from trainshed.core.units import Bytes, Nanos

_URI: Final = re.compile(r"gs://[^\s,;'\"]+")
_MOST_PREFIXES: Final = 20
NO_PLACE: Final = (
    "the job names no place in a bucket (baseOutputDirectory or jobDir) for its checkpoints"
)
"""Why nothing is known about the accesses of a job that keeps its files elsewhere."""


class Access(Struct, frozen=True):
    """One object written or read as a whole or in part, from `at` to `ended` (ns)."""

    at: Nanos
    ended: Nanos
    write: bool
    uri: str
    bytes: Bytes


class Traffic(Struct, frozen=True):
    """The known accesses of a job. `unseen`: why they are not all known, "" = they are."""

    accesses: tuple[Access, ...] = ()
    unseen: str = ""


class FileSeen(Struct, frozen=True):
    """A file, with when it was last written or first read (ns), and how many bytes that moved."""

    uri: str
    at: Nanos
    bytes: Bytes


def folders(job: Job) -> tuple[str, ...]:
    """Return the gs:// URIs, each with a slash at its end, below which the job keeps what it writes."""
    uris = (job.spec.job_dir, job.spec.base_output_directory)
    return tuple(dict.fromkeys(uri.rstrip("/") + "/" for uri in uris if uri))


def prefixes(job: Job) -> tuple[str, ...]:
    """Return the prefixes that the URIs of the job's checkpoints may have: its folders, and the URIs that its
    arguments and variables name."""
    uris = [
        uri.rstrip("/.")
        for pool in job.spec.pools
        for text in (*pool.program.command, *pool.program.args, *(v for _, v in pool.program.env))
        for uri in _URI.findall(text)
    ]
    known = folders(job)
    others = [uri for uri in uris if not f"{uri}/".startswith(known)] if known else uris
    return tuple(dict.fromkeys((*known, *others)))[:_MOST_PREFIXES]


def written(accesses: Iterable[Access], before: int) -> tuple[FileSeen, ...]:
    """Return the files whose writing was finished by `before`, the newest first."""
    by_uri: dict[str, FileSeen] = {}
    for access in sorted(accesses, key=lambda access: access.ended):
        if access.write and access.ended <= before:
            by_uri.pop(access.uri, None)
            by_uri[access.uri] = FileSeen(access.uri, access.ended, access.bytes)
    return tuple(reversed(by_uri.values()))


def read(accesses: Iterable[Access], start: int, end: int, among: set[str]) -> tuple[FileSeen, ...]:
    """Return the files of `among` that were read from `start` to `end` (0 = no end), the earliest first."""
    by_uri: dict[str, FileSeen] = {}
    for access in sorted(accesses, key=lambda access: access.at):
        inside = start <= access.at and (not end or access.at <= end)
        if access.write or not inside or access.uri not in among:
            continue
        seen = by_uri.get(access.uri)
        by_uri[access.uri] = (
            FileSeen(access.uri, seen.at, seen.bytes + access.bytes)
            if seen
            else FileSeen(access.uri, access.at, access.bytes)
        )
    return tuple(by_uri.values())


def traffic(
    job: Job, accesses: tuple[Access, ...], since: Nanos, files_written: Nanos | None
) -> Traffic:
    """Return what is known of the accesses below the job's prefixes. `since`: the moment (ns) from which on
    all of them are known. `files_written`: when anything in the job's folders was last written in any way, 0
    = never, None = not known."""
    if not prefixes(job):
        return Traffic(unseen=NO_PLACE)
    # The files of a dataset's splits are no checkpoints: the service writes them and programs read them.
    of_data = [access for access in accesses if _is_of_data(job, access)]
    others = tuple(access for access in accesses if not _is_of_data(job, access))
    split = max((access.ended for access in of_data if access.write), default=0)
    if since > job.created:
        return Traffic(
            others, "the buckets' access log does not go back to the beginning of the job"
        )
    as_files = files_written is None or files_written >= max(job.created, split)
    if as_files and not any(access.write for access in others):
        return Traffic(
            others,
            "the job's folder was written to as files (/gcs), and who reads and writes files is not recorded",
        )
    return Traffic(others)


def _is_of_data(job: Job, access: Access) -> bool:
    plan = job.spec.data
    return plan is not None and access.uri.startswith(f"{plan.directory}/")
