"""A stand-in for google.cloud.storage whose buckets are directories below $BUCKETS; run as a program it runs
the demo's with it."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

from google.cloud import storage  # pyright: ignore[reportMissingTypeStubs] - it ships none


class Blob:
    """One object."""

    def __init__(self, bucket: Path, name: str) -> None:
        self.name = name
        self._path = bucket / name

    def download_as_bytes(self) -> bytes:
        return self._path.read_bytes()

    def upload_from_string(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}")
        unfinished.write_bytes(content)
        unfinished.replace(self._path)


class Bucket:
    """One bucket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def blob(self, name: str) -> Blob:
        return Blob(self._path, name)

    def list_blobs(self, prefix: str) -> Iterator[Blob]:
        for path in self._path.joinpath(prefix).glob("[!.]*"):
            yield self.blob(path.relative_to(self._path).as_posix())


class Client:
    """The client as a program makes it."""

    def bucket(self, name: str) -> Bucket:
        return Bucket(Path(os.environ["BUCKETS"], name))


if __name__ == "__main__":
    storage.Client = Client  # pyright: ignore[reportAttributeAccessIssue] - what it needs of it
    runpy.run_module("trainshed_demo.task", run_name="__main__", alter_sys=True)
