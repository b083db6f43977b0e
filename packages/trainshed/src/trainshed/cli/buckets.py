"""`trainshed buckets`: lists, copies and deletes objects in buckets with the storage API."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, endpoint_options, project_of, project_option
from trainshed.cli.output import format_option, print_data
from trainshed.cli.text.colours import plain
from trainshed.cli.text.moments import counted, local_moment, parse_moment, size
from trainshed.cli.text.tables import Field, table_of

_SCHEME = "gs://"


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, an object in it, or a prefix of objects' names."""

    bucket: str
    name: str = ""

    def __post_init__(self) -> None:
        if any("\ud800" <= character <= "\udfff" for character in f"{self}"):
            raise click.ClickException(f"{str(self)!r} is not a valid object name: it is not UTF-8.")

    @staticmethod
    def parse(text: str) -> "Place":
        """Parse `gs://BUCKET[/NAME]`. Raises click.UsageError."""
        bucket, _, name = text.removeprefix(_SCHEME).partition("/")
        if not text.startswith(_SCHEME) or not bucket:
            raise click.UsageError(
                f"{text!r} is not the URI of a bucket or an object. Write gs://BUCKET/NAME."
            )
        return Place(bucket, name)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.name}"

    @property
    def directory(self) -> str:
        """The name as a prefix of the names in this directory: "", or a text that ends with `/`."""
        return self.name if not self.name or self.name.endswith("/") else f"{self.name}/"


@click.group(cls=Group)
def command() -> None:
    """List, copy and delete objects in buckets. Without a command: list the buckets."""


command.default = "ls"


@command.command()
@click.argument("place", required=False, metavar="[gs://BUCKET[/DIR]]")
@click.option("-r", "--recursive", is_flag=True, help="Also list the objects in all subdirectories.")
@project_option("Project of the buckets.")
@format_option
@endpoint_options
def ls(endpoint: Endpoint, *, place: str | None, recursive: bool, form: str) -> None:
    """List buckets, or the contents of a bucket or directory."""
    storage = endpoint.storage_client()
    if place is None:
        buckets = [
            bucket
            for page in storage.pages("/storage/v1/b", project=project_of(endpoint))
            for bucket in page.get("items", ())
        ]
        if form == "json":
            print_data(buckets)
            return
        for bucket in buckets:
            click.echo(f"{_SCHEME}{bucket['name']}")
        return
    at = Place.parse(place)
    objects, below = _list_directory(storage, at, recursive=recursive)
    if not objects and not below and at.name:
        raise click.ClickException(
            f"No object exists at {at}. List the bucket: trainshed buckets ls -r {_SCHEME}{at.bucket}"
        )
    if form == "json":
        print_data({"objects": objects, "directories": below})
        return
    fields = (
        Field("NAME", "name", lambda name: f"{_SCHEME}{at.bucket}/{name}"),
        Field("SIZE", "size", lambda count: size(int(count)), right=True),
        Field("CHANGED", "updated", lambda updated: local_moment(parse_moment(updated))),
    )
    for line in table_of(fields, [*({"name": name} for name in below), *objects]):
        click.echo(line)


@command.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target")
@click.option("-r", "--recursive", is_flag=True, help="Copy directories with all of their contents.")
@endpoint_options
def cp(endpoint: Endpoint, *, sources: tuple[str, ...], target: str, recursive: bool) -> None:
    """Copy objects between this machine and a bucket, or between buckets.

    A target that ends with / is a directory; - is standard input or output. If there are several sources, the
    target must be a directory. With -r, a source directory is copied with its name into TARGET.
    """
    storage = endpoint.storage_client()
    several = len(sources) > 1
    _check(sources, target)
    copied = 0
    for source in sources:
        if source.startswith(_SCHEME):
            copied += _from_bucket(storage, Place.parse(source), target, recursive, several)
        else:
            copied += _to_bucket(storage, source, Place.parse(target), recursive, several)
    click.echo(f"{counted(copied, 'object')} copied", err=True)


@command.command()
@click.argument("places", nargs=-1, required=True, metavar="gs://BUCKET/NAME...")
@click.option(
    "-r", "--recursive", is_flag=True, help="Delete all objects whose names are below gs://BUCKET/NAME."
)
@endpoint_options
def rm(endpoint: Endpoint, *, places: tuple[str, ...], recursive: bool) -> None:
    """Delete objects; with -r all objects below a name. Buckets are not deleted."""
    storage = endpoint.storage_client()
    deleted = 0
    for place in places:
        at = Place.parse(place)
        if not recursive and (not at.name or at.name.endswith("/")):
            raise click.UsageError(f"{at} is a directory. To delete all objects in it, use -r.")
        names = [at.name]
        if recursive:
            names = [str(record["name"]) for record in _find_objects(storage, at)]
            if not names:
                raise click.ClickException(
                    f"No object exists at {at}. List the bucket: trainshed buckets ls -r {_SCHEME}{at.bucket}"
                )
        for name in names:
            storage.delete(f"/storage/v1/{_object_path(Place(at.bucket, name))}")
            deleted += 1
    click.echo(f"{counted(deleted, 'object')} deleted", err=True)


def _list_directory(storage: Client, at: Place, *, recursive: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects and the subdirectories of a directory.

    If `at` is the name of an object, return only that object. If `recursive`, return all objects below `at`,
    and no subdirectories.
    """
    if recursive:
        return list(_find_objects(storage, at)), []
    objects: list[dict[str, Any]] = []
    below: list[str] = []
    for page in storage.pages(_bucket_path(at), prefix=at.name or None, delimiter="/"):
        objects += page.get("items", ())
        below += page.get("prefixes", ())
    if at.name and not at.name.endswith("/") and at.directory in below:
        return _list_directory(storage, Place(at.bucket, at.directory), recursive=False)
    exact = [record for record in objects if record["name"] == at.name]
    return (exact, []) if exact else (objects, below)


def _find_objects(storage: Client, at: Place) -> Iterator[dict[str, Any]]:
    """Yield every object at or below a name."""
    for page in storage.pages(_bucket_path(at), prefix=at.name or None):
        for record in page.get("items", ()):
            if not at.name or record["name"] == at.name or record["name"].startswith(at.directory):
                yield record


def _check(sources: tuple[str, ...], target: str) -> None:
    """Check the sources and the target before copying. Raises click.UsageError for an invalid combination."""
    to_bucket = target.startswith(_SCHEME)
    is_directory = target.endswith("/") or (
        not Place.parse(target).name if to_bucket else Path(target).is_dir()
    )
    if not to_bucket and not all(source.startswith(_SCHEME) for source in sources):
        raise click.UsageError(
            "Neither the source nor the target is in a bucket. Write one of them as gs://BUCKET/NAME."
        )
    if "-" in sources and is_directory:
        raise click.UsageError(
            f"Standard input has no file name. Add the name of the object or file to the target {target}."
        )
    if len(sources) > 1 and target != "-" and not is_directory:
        raise click.UsageError(
            f"Several sources cannot be copied into one file. If the target is a directory, write {target}/."
        )


def _from_bucket(storage: Client, source: Place, target: str, recursive: bool, keeps_name: bool) -> int:
    """Copy objects from a bucket, and return their number. If `source` is a directory, its contents are
    copied to `target`. With `keeps_name`, they are copied to a subdirectory of `target` that has the name of
    the source."""
    if recursive:
        names = [str(record["name"]) for record in _find_objects(storage, source)]
        if not target.startswith(_SCHEME):
            # Some tools write empty objects whose names end with `/`, to represent empty directories. They
            # are not copied to files.
            names = [name for name in names if not name.endswith("/")]
    else:
        names = [source.name]
        if not source.name or source.name.endswith("/"):
            raise click.UsageError(f"{source} is a directory. To copy it, use -r.")
    if not names:
        raise click.ClickException(
            f"No object exists at {source}. List the bucket: trainshed buckets ls -r {_SCHEME}{source.bucket}"
        )
    kept = (source.name.rstrip("/") or source.bucket).rpartition("/")[2] + "/" if keeps_name else ""
    for name in names:
        inner = name.rpartition("/")[2]
        if recursive and name != source.name:
            inner = kept + name.removeprefix(source.directory)
        if target.startswith(_SCHEME):
            to = Place.parse(target)
            whole = recursive or not to.name or to.name.endswith("/")
            goal = Place(to.bucket, to.directory + inner if whole else to.name)
            copy = f"{_object_path(Place(source.bucket, name))}/copyTo/{_object_path(goal)}"
            storage.post(f"/storage/v1/{copy}", {}, timeout=None)
            continue
        with storage.open_object(source.bucket, name) as answer:
            if target == "-":
                for chunk in answer.chunks(name):
                    sys.stdout.buffer.write(chunk)
            else:
                _save(answer.chunks(name), _local(target, inner, recursive=recursive))
    return len(names)


def _local(target: str, inner: str, *, recursive: bool) -> Path:
    """Return the path of the local file for an object. If `recursive`, it is always below the target. Raises
    click.ClickException if the object's name would lead out of the target (path traversal)."""
    goal = Path(target)
    if recursive:
        if any(part in ("..", "", ".") for part in inner.split("/")):
            raise click.ClickException(
                f"The object {inner!r} cannot be saved below {goal}, because a part of its name is empty, "
                "`.` or `..`. Copy the object separately, to a file name of your choice."
            )
        return goal / inner
    return goal / inner if target.endswith("/") or goal.is_dir() else goal


def _save(chunks: Iterator[bytes], goal: Path) -> None:
    # The name of the target may have the maximum length, so the temporary name does not contain it.
    draft = goal.with_name(f".{token_hex(8)}.part")
    try:
        if goal.exists() and not goal.is_file():
            raise click.ClickException(
                f"The target {plain(str(goal))} is not an ordinary file. Choose another file. For standard "
                "output, use -."
            )
        goal.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
        draft.replace(goal)
    except OSError as failure:
        raise click.ClickException(
            f"{plain(str(goal))} cannot be written: {failure.strerror}. Choose another target."
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _to_bucket(storage: Client, source: str, target: Place, recursive: bool, keeps_name: bool) -> int:
    """Copy files to a bucket, and return their number. If `source` is a directory, its contents are copied to
    `target`. With `keeps_name`, they are copied to a subdirectory of `target` that has the name of the
    source."""
    if source == "-":
        content = sys.stdin.buffer.read()
        storage.upload(target.bucket, target.name, content, len(content))
        return 1
    path = Path(source)
    if path.is_dir() and not recursive:
        raise click.UsageError(f"{path} is a directory. To copy it, use -r.")
    if not path.exists():
        raise click.ClickException(f"The file {path} does not exist.")
    if not path.is_dir():
        whole = not target.name or target.name.endswith("/")
        copy = Place(target.bucket, target.directory + path.name if whole else target.name)
        _upload(storage, path, copy)
        return 1
    kept, copied = f"{path.resolve().name}/" if keeps_name else "", 0

    def refuse(failure: OSError) -> None:
        raise click.ClickException(
            f"{failure.filename} cannot be read: {failure.strerror}. Change its permissions, or copy other "
            "files."
        )

    for parent, directories, files in os.walk(path, onerror=refuse):
        # `os.walk` does not follow a link to a directory. Its name is yielded as a file, so that `_upload`
        # rejects it.
        linked = [name for name in directories if (Path(parent) / name).is_symlink()]
        for file in sorted([*files, *linked]):
            below = Path(parent) / file
            inner = kept + below.relative_to(path).as_posix()
            _upload(storage, below, Place(target.bucket, target.directory + inner))
            copied += 1
    return copied


def _upload(storage: Client, path: Path, at: Place) -> None:
    if not path.is_file():
        raise click.ClickException(f"{path} is not an ordinary file. For standard input, use -.")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            storage.upload(at.bucket, at.name, file, size)
    except OSError as failure:
        raise click.ClickException(
            f"{path} cannot be read: {failure.strerror}. Change its permissions, or copy another file."
        ) from None


def _bucket_path(at: Place) -> str:
    return f"/storage/v1/b/{quote(at.bucket, safe='')}/o"


def _object_path(at: Place) -> str:
    return f"b/{quote(at.bucket, safe='')}/o/{quote(at.name, safe='')}"
