"""What the job leaves behind: checkpoints to go on from, and the model at the end.

Owns the job directory, `gs://…` or a plain path, and the format of what lies in it. Decides
nothing about when to save.

Files are NumPy archives without pickled objects: to open a checkpoint cannot run code.
"""

import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from trainshed_demo.model import State

_CHECKPOINT = re.compile(r"epoch-(\d{4,})\.npz")


class Folder(Protocol):
    """A flat set of named files. Writing replaces a file as a whole: nobody reads half of one."""

    def names(self) -> list[str]:
        """The files that are there, in no order; none if the folder does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, and returns when it is stored."""
        ...


class DiskFolder:
    """A folder on a disk, which `/gcs/bucket/…` is too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return [entry.name for entry in self._path.iterdir()] if self._path.is_dir() else []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished = self._path / f".{name}.{os.getpid()}"
        unfinished.write_bytes(content)
        unfinished.replace(self._path / name)


class BucketFolder:
    """The objects of a bucket whose names begin with a prefix."""

    def __init__(self, uri: str) -> None:
        """Opens a folder; the job's own credentials are found by the client library.

        Args:
            uri: `gs://bucket/some/path`, with or without a slash at the end.
        """
        # Here and not above: a job directory on a disk needs no such library.
        from google.cloud import storage  # pyright: ignore[reportMissingTypeStubs] - it ships none

        bucket, _, path = uri.removeprefix("gs://").partition("/")
        self._prefix = path.strip("/") + "/" if path.strip("/") else ""
        self._bucket = cast(Any, storage.Client()).bucket(bucket)

    def names(self) -> list[str]:
        found = self._bucket.list_blobs(prefix=self._prefix, delimiter="/")
        return [str(blob.name).removeprefix(self._prefix) for blob in found]

    def read(self, name: str) -> bytes:
        return self._bucket.blob(self._prefix + name).download_as_bytes()

    def write(self, name: str, content: bytes) -> None:
        self._bucket.blob(self._prefix + name).upload_from_string(
            content, content_type="application/octet-stream"
        )


def open_folder(uri: str) -> Folder:
    """A folder by its name, `gs://bucket/path` or a path on a disk. It need not exist."""
    return BucketFolder(uri) if uri.startswith("gs://") else DiskFolder(Path(uri))


def output_uris(job_dir: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Where checkpoints and the model belong.

    `--job-dir` says it for an AI Platform job; `AIP_CHECKPOINT_DIR` and `AIP_MODEL_DIR` for a
    Vertex AI job. With none of them it is `output` in the working directory, which lasts only as
    long as the replica.

    Returns:
        The folder of the checkpoints and the folder of the model.
    """
    base = (job_dir or "output").rstrip("/")
    checkpoints, model = f"{base}/checkpoints", f"{base}/model"
    if job_dir:
        return checkpoints, model
    return environment.get("AIP_CHECKPOINT_DIR", checkpoints), environment.get(
        "AIP_MODEL_DIR", model
    )


class Checkpoints:
    """The states that were saved in a folder, one file per epoch."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def epochs(self) -> list[int]:
        """The epochs of which there is a checkpoint, in rising order."""
        matches = (_CHECKPOINT.fullmatch(name) for name in self._folder.names())
        return sorted(int(match[1]) for match in matches if match)

    def save(self, state: State) -> str:
        """Saves a state, and returns the name of its file."""
        name = _file_name(state.epoch)
        content = pack(parameters=state.parameters, velocity=state.velocity)
        self._folder.write(name, content)
        return name

    def load(self, epoch: int, size: int) -> State | None:
        """Loads the state after an epoch.

        Args:
            epoch: One of `epochs()`.
            size: The number of the network's parameters.

        Returns:
            `None` if the file is damaged, or is a checkpoint of another network.
        """
        content = io.BytesIO(self._folder.read(_file_name(epoch)))
        try:
            with np.load(content, allow_pickle=False) as archive:
                parameters = archive["parameters"].astype(np.float32)
                velocity = archive["velocity"].astype(np.float32)
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile):
            return None
        fits = parameters.shape == velocity.shape == (size,)
        return State(epoch, parameters, velocity) if fits else None

    def latest(self, size: int) -> State | None:
        """The last state that can be gone on from, or `None`. What cannot be loaded is passed over."""
        states = (self.load(epoch, size) for epoch in reversed(self.epochs()))
        return next((state for state in states if state is not None), None)


def pack(**arrays: np.ndarray) -> bytes:
    """Named arrays as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(buffer, **named)
    return buffer.getvalue()


def _file_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.npz"
