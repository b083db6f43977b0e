"""Advice about a program that failed because a bucket is not there. Pure: takes the log's last lines.

On Google's services every program reads the public buckets (`gs://cloud-samples-data`, and those from which
Keras fetches its data sets). Here the same names lead to this service's own buckets, and what clients say of
that is hard to read: `FileNotFoundError: b/cloud-samples-data/o`.
"""

import re
from typing import Final

_BUCKET: Final = r"([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])"
_MISSING: Final = (
    # The storage library, and whatever else shows the service's own answer.
    re.compile(rf"The specified bucket does not exist\. \(bucket: {_BUCKET}\)"),
    # gsutil and gcloud.
    re.compile(rf"404 gs://{_BUCKET} bucket does not exist"),
    re.compile(rf"gs://{_BUCKET} not found: 404"),
    # gcsfs, and so pandas, by the address that it had asked.
    re.compile(rf"FileNotFoundError: b/{_BUCKET}/o$"),
    # Keras and requests.
    re.compile(rf"https?://storage\.googleapis\.com/{_BUCKET}/\S*: 404\b"),
    re.compile(rf"404 Client Error: .*https?://storage\.googleapis\.com/{_BUCKET}/"),
)


def missing_bucket(tail: str) -> str:
    """Return the bucket whose absence the last of these lines reports, or leads back to; "" if it reports
    something else."""
    lines = tail.rstrip().splitlines()
    for line in reversed(lines):
        for pattern in _MISSING:
            # Many programs look into one place after the other, and go on.
            if (found := pattern.search(line.rstrip())) and found[1] in lines[-1]:
                return found[1]
    return ""


def advice_on_bucket(bucket: str) -> str:
    """Return what the user can do about the bucket, in a few sentences."""
    return (
        "Inside a job, gs:// and storage.googleapis.com are this service's own buckets, and Google's public "
        f"ones are not among them: there is no bucket {bucket} here, or not that object in it. Make the "
        f"bucket (gcloud storage buckets create gs://{bucket}) and copy the data into it (trainshed buckets "
        "cp), or "
        'let the operator show Google\'s own here, by a table of [[buckets]] with store = "gcs".'
    )
