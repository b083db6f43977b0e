"""A folder of a bucket, with checkpoints and models as NumPy archives."""

import io
from typing import Any, cast

import numpy as np


class Folder:
    """The objects below `gs://bucket/path/`. The client library finds the job's own credentials."""

    def __init__(self, uri: str) -> None:
        # Imported late, because it takes longer than all else, and the first line should not wait for it.
        from google.cloud import storage  # pyright: ignore[reportMissingTypeStubs] - it ships none

        bucket, _, self.path = uri.removeprefix("gs://").partition("/")
        self.bucket = cast(Any, storage.Client()).bucket(bucket)

    def names(self) -> list[str]:
        blobs = self.bucket.list_blobs(prefix=self.path)
        return sorted(str(blob.name).removeprefix(self.path) for blob in blobs)

    def write(self, name: str, content: bytes) -> None:
        self.bucket.blob(self.path + name).upload_from_string(content)

    def save(self, name: str, epoch: int, weights: Any) -> str:
        content = io.BytesIO()
        np.savez(content, epoch=epoch, weights=weights)
        self.write(name, content.getvalue())
        return name

    def load(self, name: str) -> tuple[int, Any]:
        """Return the epoch and the weights in a file."""
        content = io.BytesIO(self.bucket.blob(self.path + name).download_as_bytes())
        # No pickled objects: opening a checkpoint must not run code.
        with np.load(content, allow_pickle=False) as archive:
            return int(archive["epoch"]), archive["weights"]
