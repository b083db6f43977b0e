"""Decides which source is copied to which name: the rules of `cp` and `mv` about directories. Pure.

They are those of a Unix `cp`, as far as a store without directories can have them: a source keeps its last
part inside a destination that is a directory, and takes the name of a destination that does not exist.
"""

from typing import NamedTuple

from trainshed_gsutil import urls
from trainshed_gsutil.errors import CommandFailure, InvalidUrl
from trainshed_gsutil.urls import Url


class Source(NamedTuple):
    """One file or object that is copied."""

    #: The argument as it was typed.
    given: Url
    #: One file or object that the argument names.
    found: Url
    #: Whether it was found in a directory, in a bucket or below a prefix.
    in_container: bool = False
    #: Whether the command copies more than one file or object.
    is_one_of_many: bool = False
    #: Whether the arguments name more than one file, object or directory.
    is_top_of_many: bool = False


class Destination(NamedTuple):
    """Where a command copies to."""

    url: Url
    #: Whether it is a bucket, a directory, or a prefix with objects below it.
    exists: bool
    #: Whether it is a local directory.
    is_directory: bool = False


def target_of(source: Source, destination: Destination, recursive: bool) -> Url:
    """Returns where a source is copied to. Raises CommandFailure, InvalidUrl."""
    to = destination.url
    if _takes_its_place(source, destination, recursive):
        return to
    if source.found.is_stream:
        if destination.exists:
            raise CommandFailure("Destination object name needed when source is a stream")
        return to
    last = source.found.name.rpartition("/")[2]
    if not recursive and not source.is_one_of_many:
        return to._replace(name=_joined(to.name, last))
    keeps_top = _keeps_top(source, destination)
    mirrors = source.in_container and (to.is_cloud or destination.is_directory)
    name = _below(source, with_top=keeps_top) if keeps_top or mirrors else last
    if not to.is_cloud or destination.exists or source.is_one_of_many or source.in_container:
        name = _joined(to.name, name)
    return to._replace(name=name)


def must_be_container(destination: Destination, command: str) -> None:
    """Raises CommandFailure unless the destination can hold many sources."""
    if not destination.url.is_cloud and not destination.is_directory:
        raise CommandFailure(
            "Destination URL must name a directory, bucket, or bucket\nsubdirectory for the "
            "multiple source form of the "
            f"{command} command."
        )


def _takes_its_place(source: Source, destination: Destination, recursive: bool) -> bool:
    if recursive and source.in_container:
        return False
    if not destination.url.is_cloud:
        return not destination.is_directory
    return not source.is_one_of_many and not destination.exists and destination.url.is_object


def _keeps_top(source: Source, destination: Destination) -> bool:
    """Whether the last part of the argument becomes a part of the target's name."""
    last = source.given.name.rstrip("/").rpartition("/")[2]
    is_relative = not source.given.is_cloud and last in (".", "..")
    if is_relative and source.is_top_of_many:
        raise InvalidUrl(
            "Presence of multiple top-level sources and invalid expanded URL make file name "
            "conflicts possible for "
            f"URL: {source.given}"
        )
    if is_relative or "**" in source.given.name:
        return False
    return source.is_top_of_many or destination.exists


def _below(source: Source, *, with_top: bool) -> str:
    """Returns the part of the found name below the argument, with or without the argument's last part before
    it."""
    given, found = source.given, source.found
    if given.is_bucket:
        path = "%s/%s" % (found.bucket, found.name)
    else:
        above = given.name.rstrip("/").rpartition("/")[0]
        if given.is_cloud and urls.has_wildcard(above):
            above = "/".join(found.name.split("/")[: above.count("/") + 1])
        path = found.name[len(above) :].lstrip("/")
    return path if with_top else path.partition("/")[2]


def _joined(directory: str, name: str) -> str:
    if not directory:
        return name
    return "%s/%s" % (directory.rstrip("/"), name)
