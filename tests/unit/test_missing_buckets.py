"""What a job's error says of a bucket that its program looked for in vain."""

import pytest

from trainshed.core.failure.missing_buckets import advice_on_bucket, missing_bucket

NAME = "samples-of-others"
ADDRESS = f"https://storage.googleapis.com/{NAME}/data/digits.npz"


@pytest.mark.parametrize(
    ("last", "bucket"),
    [
        # pandas by gcsfs; the storage library; Keras; requests; gsutil and gcloud, which were called.
        (f"    raise FileNotFoundError(path)\nFileNotFoundError: b/{NAME}/o\n", NAME),
        (
            "google.api_core.exceptions.NotFound: 404 GET http://h/b/x?alt=media: {'error': {'code': 404, "
            f"'message': 'The specified bucket does not exist. (bucket: {NAME})'}}}}\n",
            NAME,
        ),
        (f"Exception: URL fetch failure on {ADDRESS}: 404 -- Not Found", NAME),
        (f"requests.exceptions.HTTPError: 404 Client Error: Not Found for url: {ADDRESS}", NAME),
        (
            f"BucketNotFoundException: 404 gs://{NAME} bucket does not exist.\n"
            f"CalledProcessError: Command '['gsutil', 'cp', 'gs://{NAME}/x', 'x']' returned 1.",
            NAME,
        ),
        (f"ERROR: (gcloud.storage.ls) gs://{NAME} not found: 404.", NAME),
        # Somebody else's matter: another server, another error, a refusal that the program went on after.
        ("HTTPError: 404 Client Error: Not Found for url: https://example.org/a/b", ""),
        (f"FileNotFoundError: {NAME}/data.csv", ""),
        (f"HTTPError: 403 Client Error: Forbidden for url: {ADDRESS}", ""),
        (f"FileNotFoundError: b/{NAME}/o\nValueError: no data", ""),
        ("", ""),
    ],
)
def test_the_bucket_is_read_from_what_the_last_line_leads_to(last: str, bucket: str) -> None:
    assert missing_bucket(last) == bucket


def test_whoever_looks_for_a_public_bucket_is_told_that_it_is_not_here() -> None:
    told = advice_on_bucket(NAME)
    assert "this service's own buckets" in told
    assert f"gs://{NAME}" in told
    assert "[[buckets]]" in told
