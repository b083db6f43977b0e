"""A stand-in for google.cloud.storage whose buckets are directories below $BUCKETS; run as a program it runs
the demo's with it. The real one takes longer to load than the demo to train."""

import importlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


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
    storage = ModuleType("google.cloud.storage")
    storage.__dict__["Client"] = Client
    sys.modules[storage.__name__] = storage
    importlib.import_module("google.cloud").__dict__["storage"] = storage
    runpy.run_module("trainshed_demo.task", run_name="__main__", alter_sys=True)
