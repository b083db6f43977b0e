"""Pins the Python packages of a job to their contents at the job's creation. Pure.

A package is pinned by the SHA-256 of its content. `trainshed run` also includes the digest in the path of a
staged package. A job file, a gcloud command or a program with the SDK therefore pins the package as well.
"""

import re
from typing import Final

from msgspec import Struct

COPY_LABEL: Final = "trainshed-copy-of"
"""Label of a job copy: the uid of the original job in the same project. The copy requires the package
contents of the original job."""

_STAGED: Final = "trainshed-run"
"""The directory of a bucket in which `trainshed run` stages packages."""
_DIGITS: Final = 32
"""Number of digits of the digest in a staged package's path. An attacker cannot create other content that
matches 32 digits. Older paths have 16 digits."""
_STAGED_PATH: Final = re.compile(rf"gs://[^/]+/{_STAGED}/([0-9a-f]{{16,64}})/[^/]+")


class JobPackage(Struct, frozen=True, order=True):
    """One Python package of a job."""

    #: The package's location: `gs://BUCKET/PATH`.
    uri: str
    #: The first hexadecimal digits of the SHA-256 of the package's content, or "" if it is not pinned.
    digest: str = ""

    def fault(self, digest: str) -> str | None:
        """Return an error with advice if contents with this SHA-256 do not match the pinned package. Return
        None if they match."""
        if digest.startswith(self.digest):
            return None
        bucket = self.uri.split("/")[2]
        verb = "was" if len(self.digest) == len(digest) else "started with"
        return (
            f"The package {self.uri} has changed since the job was created: its SHA-256 "
            f"{verb} {self.digest}, and is now {digest}. The service ran nothing from it. "
            "If the new content is yours, submit it as a new job. Otherwise check who may "
            f"write to gs://{bucket}, and restore the former content."
        )


def staged_name(digest: str, filename: str) -> str:
    """Return the object name under which `trainshed run` stages a package. `digest`: the SHA-256 in
    hexadecimal digits."""
    return f"{_STAGED}/{digest[:_DIGITS]}/{filename}"


def digest_in(uri: str) -> str:
    """Return the digest in the path of a staged package, or "" if the path contains none."""
    match = _STAGED_PATH.fullmatch(uri)
    return match[1] if match else ""
