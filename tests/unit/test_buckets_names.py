"""Names of the storage API: gs:// URIs, places on disk, request paths, and multipart bodies."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainshed.buckets.disk.tree import place_of
from trainshed.buckets.errors import InvalidRequest
from trainshed.buckets.listing import compile_glob
from trainshed.buckets.names import parse_gs_uri, validate_bucket_name, validate_object_name
from trainshed.buckets.rest.multipart import MultipartReader

SEGMENTS = st.one_of(
    st.sampled_from(["", ".", "..", "a", "b:c", ".gs~file", ".gs~=x", "é" * 127, "x" * 255]),
    st.text(st.characters(exclude_characters="/\r\n\0", exclude_categories=["Cs"]), max_size=300),
)


@pytest.mark.parametrize(
    "uri",
    ["bucket/x", "s3://bucket/x", "gs://", "gs:///x", "gs://UPPER/x", "gs://ab/x", "gs://b-/x",
     "gs://192.168.1.1/x", "gs://google-x/y", "gs://bucket/a\nb", "gs://bucket/.."],
)  # fmt: skip
def test_invalid_gs_uri_error_contains_the_remedy(uri: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_gs_uri(uri)
    assert caught.value.message.rstrip().endswith(".")


def test_bucket_names_follow_the_public_rules() -> None:
    for good in ("abc", "a" * 63, "a.b", "0-9_a", "my-bucket.example.com"):
        assert validate_bucket_name(good) == good
    for bad in ("", "ab", "a" * 64, "-ab", "ab-", "a..b", "a.-b", "a b", ".abc", "a/b", "aé1"):
        with pytest.raises(InvalidRequest):
            validate_bucket_name(bad)


def test_invalid_object_names_are_rejected() -> None:
    for bad in (
        "",
        "a\rb",
        "a\0b",
        ".",
        "x" * 1025,
        "/" * 200,
        "\ud800",
        "a/" + "é" * 128,
        ".gs~" + "x" * 247,
    ):
        with pytest.raises(InvalidRequest):
            validate_object_name(bad)


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.lists(SEGMENTS, min_size=1, max_size=4))
def test_distinct_object_names_have_distinct_paths(left: list[str], right: list[str]) -> None:
    first, second = "/".join(left), "/".join(right)
    assert (place_of(first) == place_of(second)) == (first == second)


def _body(boundary: str, newline: str, content: bytes) -> bytes:
    head = newline.join(
        [f"--{boundary}", "Content-Type: application/json", "", '{"size": 3}', f"--{boundary}",
         "content-type: text/x", "Content-Transfer-Encoding: binary", "", ""]
    )  # fmt: skip
    return head.encode() + content + f"{newline}--{boundary}--".encode()


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/related; boundary='===============1=='", "===============1=="),
        ("multipart/related; boundary='quoted'", "'quoted'"),
        ('multipart/related; boundary="a b"', "a b"),
        ("multipart/related; boundary=plain; x=y", "plain"),
    ],
)
@given(content=st.binary(max_size=2000), step=st.integers(1, 700), tail=st.booleans())
@example(content=b"\r", step=1, tail=True)
@example(content=b"\r\n--plain", step=7, tail=False)
@example(content=b"", step=3, tail=False)
def test_multipart_bodies_of_real_clients_are_parsed(
    newline: str, header: str, boundary: str, content: bytes, step: int, tail: bool
) -> None:
    """spec/clients#uploads: single quotes around the boundary, and LF as line end."""
    body = _body(boundary, newline, content) + (newline.encode() if tail else b"")
    reader = MultipartReader(header)
    out = b"".join(reader.feed(body[at : at + step]) for at in range(0, len(body), step))
    assert out + reader.finish() == content
    assert reader.head is not None
    assert (reader.head.metadata, reader.head.content_type) == (b'{"size": 3}', "text/x")


def test_truncated_multipart_body_is_rejected() -> None:
    reader = MultipartReader("multipart/related; boundary=b")
    reader.feed(_body("b", "\n", b"content")[:-5])
    with pytest.raises(InvalidRequest):
        reader.finish()


@pytest.mark.parametrize(
    "pattern", ["**a" * 300 + "b", "**" * 500 + "b", "{" + "**a," * 200 + "}b", "[" * 1000, "?" * 999]
)
def test_glob_matching_takes_linear_time(pattern: str) -> None:
    names = ["a" * 1000] * 20
    glob = compile_glob(pattern)
    began = time.thread_time()
    assert not any(map(glob.is_all_of, names))
    assert time.thread_time() - began < 2


def test_glob_above_the_maximum_length_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="1024 bytes"):
        compile_glob("*" * 1025)
