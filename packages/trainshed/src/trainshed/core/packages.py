"""The Python packages of a job, each pinned to the content that it had when the job was made. Pure.

A package is pinned by the SHA-256 of its content. `trainshed run` also puts the digest into the path at which
it stages a package, so that a job file, a command for gcloud or a program of the SDK pins it as well.
"""

import re
from typing import Final

from msgspec import Struct

COPY_LABEL: Final = "trainshed-copy-of"
"""Label of a job: the uid of the job of the same project that it is a copy of. Its packages must be what that
job was made with."""

_STAGED: Final = "trainshed-run"
"""The directory of a bucket in which `trainshed run` stages packages."""
_DIGITS: Final = 32
"""Digits of the digest in such a path: too many to make another content that fits. Older paths have 16."""
_STAGED_PATH: Final = re.compile(rf"gs://[^/]+/{_STAGED}/([0-9a-f]{{16,64}})/[^/]+")


class JobPackage(Struct, frozen=True, order=True):
    """One package of a job."""

    #: `gs://BUCKET/PATH`.
    uri: str
    #: The first hexadecimal digits of the SHA-256 of its content; "" = it is not pinned.
    digest: str = ""

    def fault(self, digest: str) -> str | None:
        """Return what is wrong if the content with this SHA-256 is installed for it, and what to do; None if
        nothing is."""
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
    """Return the name of the object at which `trainshed run` stages a package. `digest`: SHA-256 in
    hexadecimal digits."""
    return f"{_STAGED}/{digest[:_DIGITS]}/{filename}"


def digest_in(uri: str) -> str:
    """Return the digest in the path of a staged package; "" if there is none."""
    match = _STAGED_PATH.fullmatch(uri)
    return match[1] if match else ""
