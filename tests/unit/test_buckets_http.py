"""The storage API without a socket: the application is called as a server would call it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.open_files import opened
from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.buckets.authentication import CALLER, LISTENER, Authenticator, Listener
from trainshed.buckets.callers import Caller, Reach, encode_caller
from trainshed.buckets.content import Digest
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.notices import Notices
from trainshed.buckets.rest import multipart
from trainshed.buckets.rest.app import BucketsApp
from trainshed.buckets.rest.calls import VerbatimName
from trainshed.core.names import project_number
from trainshed.httpd.hosts import Hosts
from trainshed.httpd.messages import Message

OWNER = Caller("owner@test", {"": Reach.ADMIN})
UPLOAD = "/upload/storage/v1/b/bucket/o"
ITEM = "/storage/v1/b/bucket/o/"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw_names: list[bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Answer]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = ObjectStore(tmp_path / "store")
    made.catalog.create("bucket")
    return made


class Lenient(Authenticator):
    """Takes everybody at the port for the owner, and each program for one that runs."""

    def __init__(self) -> None:
        pass

    async def caller(self, authorization: str | None, key: str | None) -> Caller:
        return OWNER

    def check(self, program: JobClaims) -> None:
        pass


@pytest.fixture
def ask(store: ObjectStore, tmp_path: Path) -> Ask:
    lenient = Lenient()
    tokens = JobTokens.open(tmp_path / "jobs.key", time.time_ns)
    metadata = Metadata(tokens, lenient.check, Notices())
    app = BucketsApp(store, lenient, hosts=Hosts(("h",)), metadata=metadata)

    def call(
        method: str,
        target: str,
        body: bytes | list[bytes] | dict[str, Any] = b"",
        *,
        gone: bool = False,
        listener: Listener = Listener.GATEWAY,
        caller: Caller = OWNER,
        **headers: str,
    ) -> Answer:
        path, _, query = target.partition("?")
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        blocks = list(body) if isinstance(body, list) else [body]
        sent: list[Message] = []

        async def receive() -> Message:
            if not blocks:
                if not gone:
                    await asyncio.Event().wait()  # a client that stays says nothing more
                return {"type": "http.disconnect"}
            block = blocks.pop(0)
            return {"type": "http.request", "body": block, "more_body": bool(blocks) or gone}

        async def send(message: Message) -> None:
            sent.append(message)

        fields = {"host": "h:1", **{key.replace("_", "-"): text for key, text in headers.items()}}
        if listener is Listener.GATEWAY:
            fields["x-trainshed-identity"] = encode_caller(caller).decode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(key.encode(), text.encode()) for key, text in fields.items()],
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("h", 1),
            "state": {LISTENER: listener, CALLER: caller},
        }
        asyncio.run(app(scope, receive, send))
        if not sent:
            return Answer(0, {}, [], b"")
        raw = cast("list[tuple[bytes, bytes]]", sent[0]["headers"])
        return Answer(
            sent[0]["status"],
            {name.lower().decode().lower(): value.decode() for name, value in raw},
            [name for name, _ in raw],
            b"".join(message.get("body", b"") for message in sent[1:]),
        )

    return call


def put(ask: Ask, name: str, body: bytes, **headers: str) -> Any:
    answer = ask("POST", f"{UPLOAD}?uploadType=media&name={name}", body, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def test_resources_point_to_where_the_client_asked(ask: Ask) -> None:
    view = put(ask, "a%2Fb", b"hello", content_type="text/plain")
    assert view["selfLink"] == "http://h:1/storage/v1/b/bucket/o/a%2Fb"
    assert (view["size"], view["crc32c"], view["contentType"]) == ("5", "mnG7TA==", "text/plain")
    forwarded = ask("GET", ITEM + "a%2Fb", x_forwarded_proto="https")
    assert forwarded.json["selfLink"].startswith("https://h:1/")
    link = view["mediaLink"].removeprefix("http://h:1")
    assert ask("GET", link).body == b"hello"
    assert ask("GET", ITEM + "a%2Fb?alt=media").body == b"hello"
    assert ask("GET", ITEM + "a%2Fb?alt=json&prettyPrint=false&fields=name").json["name"] == "a/b"
    # The public form, and that of Node's client with STORAGE_EMULATOR_HOST.
    for target in ("/bucket/a/b", "/b/bucket/o/a%2Fb?alt=media"):
        assert ask("GET", target).body == b"hello"
    # A page of another name reads nothing.
    assert ask("GET", link, host="evil.example").status == 421


@pytest.mark.parametrize(
    ("wanted", "status", "content", "header"),
    [
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=3-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
def test_ranges(
    ask: Ask, wanted: str, status: int, content: bytes | None, header: str | None
) -> None:
    put(ask, "x", b"0123456789")
    answer = ask("GET", ITEM + "x?alt=media", range=wanted)
    assert answer.status == status
    assert answer.headers.get("content-range") == header
    if content is not None:
        assert answer.body == content
        assert answer.headers["content-length"] == str(len(content))


def test_a_range_is_of_the_content_that_the_client_has(ask: Ask) -> None:
    """HTTP's If-Range: else a download that goes on would be glued together of two generations."""
    put(ask, "x", b"0123")
    tag = ask("GET", ITEM + "x?alt=media").headers["etag"]
    ranges = {"range": "bytes=2-", "if_range": f'"{tag}"'}
    assert ask("GET", ITEM + "x?alt=media", **ranges).body == b"23"
    put(ask, "x", b"abcd")
    assert ask("GET", ITEM + "x?alt=media", **ranges).body == b"abcd"


@pytest.mark.parametrize(
    "fault", [(errno.ENOSPC, 503, "is full"), (errno.EXDEV, 403, "another file system")]
)
def test_a_disk_that_takes_nothing_is_told_in_a_line(
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: tuple[int, int, str],
) -> None:
    """It is no fault of ours, comes with each retry, and the log may be on the same disk."""
    number, status, words = fault
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError(number, os.strerror(number))))
    refused = ask("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=a", b"x")
    assert (refused.status, words in refused.body.decode()) == (status, True)
    logged = [(record.levelname, record.exc_info) for record in caplog.records]
    assert logged == [("WARNING", None)] * (number == errno.ENOSPC)


def test_gzip_is_kept_and_unpacked_for_those_who_cannot(ask: Ask) -> None:
    content = b"text " * 500_000
    packed = gzip.compress(content[:7]) + gzip.compress(content[7:])  # As composed of two objects.
    packed += bytes(3)
    answer = ask("POST", f"{UPLOAD}?uploadType=media&name=z&contentEncoding=gzip", packed)
    assert answer.json["size"] == str(len(packed))
    kept = ask("GET", ITEM + "z?alt=media", accept_encoding="gzip")
    assert (kept.body, kept.headers["content-encoding"]) == (packed, "gzip")
    plain = ask("GET", ITEM + "z?alt=media")
    assert plain.body == content
    assert "content-encoding" not in plain.headers
    assert "content-length" not in ask("HEAD", ITEM + "z?alt=media").headers
    # What is packed for the way alone (gsutil cp -J, gcloud storage cp --gzip-in-flight) is stored unpacked.
    put(ask, "w", gzip.compress(content), content_encoding="gzip")
    assert ask("GET", ITEM + "w?alt=media", accept_encoding="gzip").body == content
    for wrong in (content, packed[:-9]):
        target = f"{UPLOAD}?uploadType=media&name=x"
        assert ask("POST", target, wrong, content_encoding="gzip").status == 400
    # A body of JSON is unpacked as well, up to the bound that one which is not packed has.
    for body, status in ((b'{"metadata": {"k": "v"}}', 200), (b" " * (2 << 20), 400)):
        patched = ask("PATCH", f"{ITEM}w", gzip.compress(body), content_encoding="gzip")
        assert patched.status == status
    assert ask("GET", f"{ITEM}w").json["metadata"] == {"k": "v"}
    # Java's clients send no other verb than GET, POST, PUT and DELETE. A query that is a body is not read.
    java = {"x_http_method_override": "PATCH"}
    assert ask("POST", f"{ITEM}w", {"metadata": {"k": "w"}}, **java).json["metadata"] == {"k": "w"}
    form = {"x_http_method_override": "GET", "content_type": "application/x-www-form-urlencoded"}
    assert ask("POST", ITEM[:-1], b"prefix=x", **form).status == 400


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/storage/v1/b/bucket/o/x/restore", 400),
        ("POST", "/storage/v1/b/bucket/notificationConfigs", 400),
        ("POST", "/storage/v1/b/bucket/o", 400),
        ("GET", "/storage/v1/projects/p/hmacKeys", 400),
        ("POST", UPLOAD + "?uploadType=other&name=x", 400),
        ("POST", UPLOAD + "?uploadType=media", 400),
        ("GET", "/storage/v1/b/no-such-bucket/o", 404),
        # Where a name is missing, the bucket is not meant.
        ("DELETE", ITEM, 404),
        ("PUT", ITEM, 404),
        ("GET", ITEM + "x?generation=abc", 400),
        ("PUT", UPLOAD + "?upload_id=abc", 404),
        ("PUT", f"{UPLOAD}?upload_id={300 * 'a'}", 404),
    ],
)
def test_what_is_not_served_says_so(ask: Ask, method: str, target: str, status: int) -> None:
    """spec/clients#storage: an unknown verb is never an empty 200, and nothing that gcloud tries again for
    half a minute."""
    answer = ask(method, target)
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/storage/v1/b", b'{"a":' * 100_000),
        ("POST", "/storage/v1/b", {"name": "another", "labels": [1]}),
        ("PATCH", "/storage/v1/b/bucket", {"labels": 5}),
        ("PUT", "/storage/v1/b/bucket/iam", {"bindings": [5]}),
        ("PUT", "/storage/v1/b/bucket/iam", {"bindings": [{"role": "r", "members": "m"}]}),
        ("PATCH", f"{ITEM}x", {"metadata": 5}),
        ("PATCH", f"{ITEM}x", {"contentType": {"a": "b"}, "customTime": 5}),
        ("PATCH", f"{ITEM}x", {"customTime": "soon"}),
        ("PATCH", f"{ITEM}x", {"storageClass": "FAST"}),
        ("PATCH", f"{ITEM}x", {"metadata": {"k": 9000 * "v"}}),
        ("PATCH", f"{ITEM}x", {"metadata": {"k": True}}),
        ("PATCH", f"{ITEM}x", {"temporaryHold": 1}),
        ("PATCH", "/storage/v1/b/bucket", {"versioning": {"enabled": 1}}),
        ("PATCH", "/storage/v1/b/bucket", {"storageClass": ["STANDARD"]}),
        ("PATCH", "/storage/v1/b/bucket", {"labels": {"k": {"a": "b"}}}),
        ("POST", f"{ITEM}y/compose", {"sourceObjects": [{"name": "x", "objectPreconditions": 1}]}),
        ("POST", f"{UPLOAD}?uploadType=resumable&name=x", {"metadata": [1]}),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_value_of_another_kind_is_a_400(
    ask: Ask, method: str, target: str, body: bytes | dict[str, Any]
) -> None:
    """Clients of other languages would fail to read each list that has it."""
    ask("POST", f"{UPLOAD}?uploadType=media&name=x", b"content")
    assert ask(method, target, body).status == 400


def test_resumable_upload_by_hand(ask: Ask) -> None:
    """spec/clients#uploads: sessions also live below /resumable/upload, at the request's own host."""
    start = ask(
        "POST",
        "/resumable" + UPLOAD + "?uploadType=resumable",
        {"name": "big", "metadata": {"k": "v"}},
        x_upload_content_type="t/x",
    )
    address = start.headers["location"]
    assert address.startswith("http://h:1/resumable/upload/storage/v1/b/bucket/o?")
    target = address.removeprefix("http://h:1")
    assert ask("PUT", target, content_range="bytes */*").status == 308
    part = ask("PUT", target, [b"he", b"l"], content_range="bytes 0-2/*")
    assert (part.status, part.headers["range"]) == (308, "bytes=0-2")
    assert VerbatimName(b"Range") in part.raw_names
    cut = ask("PUT", target, [b"l"], gone=True, content_range="bytes 3-4/5")
    assert cut.status == 0
    status = ask("PUT", target, content_range="bytes */5")
    assert status.headers["range"] == "bytes=0-3"
    gap = ask("PUT", target, b"!", content_range="bytes 9-9/10")
    assert (gap.status, gap.headers["range"]) == (308, "bytes=0-3")
    last = ask("PUT", target, b"llo", content_range="bytes 2-4/5")  # overlaps what is there
    assert (last.status, last.json["size"], last.json["contentType"]) == (200, "5", "t/x")
    assert last.json["metadata"] == {"k": "v"}
    assert ask("PUT", target, b"llo", content_range="bytes 2-4/5").json == last.json
    assert ask("PUT", target, content_range="bytes */5").json == last.json
    assert ask("GET", ITEM + "big?alt=media").body == b"hello"


def test_an_upload_in_one_request_has_the_size_that_was_announced(ask: Ask) -> None:
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=x", x_upload_content_length="5")
    target = start.headers["location"].removeprefix("http://h:1")
    part = ask("PUT", target, b"hel")
    assert (part.status, part.headers["range"]) == (308, "bytes=0-2")
    assert ask("GET", ITEM + "x").status == 404
    assert ask("PUT", target, b"", content_range="bytes 3-2/3").status == 400
    assert ask("PUT", target, b"hello!").status == 400


def test_an_upload_with_an_open_end_ends_with_its_request(ask: Ask) -> None:
    """So Node's client sends what has more than 5 MB."""
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=x")
    target = start.headers["location"].removeprefix("http://h:1")
    assert ask("PUT", target, [b"he"], gone=True, content_range="bytes 0-*/*").status == 0
    assert ask("PUT", target, b"o", content_range="bytes 4-*/*").status == 308, "a gap"
    assert ask("PUT", target, b"llo", content_range="bytes 2-*/*").json["size"] == "5"


def test_a_time_is_kept_in_utc(ask: Ask) -> None:
    """Python's client reads no other."""
    ask("POST", f"{UPLOAD}?uploadType=media&name=x", b"content")
    patched = ask("PATCH", ITEM + "x", {"customTime": "2026-01-31T12:00:00.5+02:00"})
    assert patched.json["customTime"] == "2026-01-31T10:00:00.500000Z"


def test_a_client_that_knows_no_308_is_told_otherwise(ask: Ask) -> None:
    """Go's client libraries ask for it, and take a 308 for a failure (google.golang.org/api, gensupport)."""
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=big")
    target = start.headers["location"].removeprefix("http://h:1")
    part = ask("PUT", target, b"hel", content_range="bytes 0-2/*", x_guploader_no_308="yes")
    assert (part.status, part.headers["x-http-status-code-override"]) == (200, "308")
    assert part.headers["range"] == "bytes=0-2"
    last = ask("PUT", target, b"lo", content_range="bytes 3-4/5", x_guploader_no_308="yes")
    assert (last.status, last.json["size"]) == (200, "5")
    assert "x-http-status-code-override" not in last.headers


def test_a_copy_ends_with_who_asked_for_it(ask: Ask, store: ObjectStore) -> None:
    """Issue: copies of one sparse file of terabytes, which takes nothing, held all threads for hours."""
    with (store.root / "bucket" / "sparse").open("wb") as file:
        file.truncate(4 << 20)
    copied = ask("PUT", "/bucket/copy", gone=True, x_goog_copy_source="bucket/sparse")
    assert (copied.status, ask("GET", ITEM + "copy").status) == (0, 404)


def test_a_cut_upload_leaves_no_object(ask: Ask, store: ObjectStore) -> None:
    assert ask("POST", f"{UPLOAD}?uploadType=media&name=x", [b"torn"], gone=True).status == 0
    assert ask("GET", ITEM + "x").status == 404
    assert list((state_directory(store.root) / "tmp").iterdir()) == []


def test_copies(ask: Ask) -> None:
    put(ask, "x", b"1", content_type="t/x")
    done = ask("POST", ITEM + "x/rewriteTo/b/bucket/o/y%2Fz", {"metadata": {"k": "v"}}).json
    assert (done["done"], done["resource"]["name"]) == (True, "y/z")
    assert (done["resource"]["metadata"], done["resource"]["contentType"]) == ({"k": "v"}, "t/x")
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c").json["contentType"] == "t/x"
    # As Go's client library writes that there is nothing to be changed; rclone copies so.
    nothing = ask("POST", ITEM + "x/rewriteTo/b/bucket/o/n", b"null\n").json
    assert (nothing["done"], nothing["resource"]["contentType"]) == (True, "t/x")
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c?ifGenerationMatch=0").status == 412
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/d?ifSourceGenerationMatch=1").status == 412
    for way in ("copyTo/b/bucket", "moveTo"):
        assert ask("POST", f"{ITEM}x/{way}/o/d?ifSourceMetagenerationNotMatch=1").status == 412
    assert ask("POST", ITEM + "x/moveTo/o/m").json["name"] == "m"
    assert ask("GET", ITEM + "x").status == 404


def test_a_copy_for_which_there_is_no_room_leaves_its_source_closed(
    ask: Ask, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ask, "x", b"1")
    monkeypatch.setattr(store, "stage", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    before = opened(store.root)
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c").status == 503
    assert opened(store.root) == before


def test_a_bucket_that_is_deleted_while_they_are_listed_is_left_out(
    ask: Ask, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.catalog, "names", Mock(return_value=["bucket", "deleted"]))
    assert [item["name"] for item in ask("GET", "/storage/v1/b").json["items"]] == ["bucket"]


def test_buckets_over_the_api(ask: Ask) -> None:
    made = ask("POST", "/storage/v1/b?project=p", {"name": "second", "location": "eu"})
    assert (made.json["location"], made.json["locationType"]) == ("EU", "multi-region")
    assert ask("POST", "/storage/v1/b?project=p", {"name": "second"}).status == 409
    page = ask("GET", "/storage/v1/b?maxResults=1").json
    token = page["nextPageToken"]
    rest = ask("GET", f"/storage/v1/b?maxResults=1&pageToken={token}").json
    assert [item["name"] for item in page["items"] + rest["items"]] == ["bucket", "second"]
    assert "nextPageToken" not in rest
    of_p = ask("GET", "/storage/v1/b?project=p").json["items"]
    assert [item["name"] for item in of_p] == ["second"]
    for part in ("storageLayout", "managedFolders", "iam"):
        assert ask("GET", f"/storage/v1/b/second/{part}").status == 200
    policy = ask("GET", "/storage/v1/b/second/iam").json
    policy["bindings"] = [{"role": "r", "members": ["m"]}]
    assert ask("PUT", "/storage/v1/b/second/iam", policy).status == 200
    assert ask("GET", "/storage/v1/b/second/iam").json["bindings"] == policy["bindings"]
    # Else of two people who give a role at once, one would take the other's away.
    assert ask("PUT", "/storage/v1/b/second/iam", policy).status == 412
    wanted = ["storage.objects.get", "storage.objects.fly", "a", "storage.buckets.update"]
    query = "&".join(f"permissions={permission}" for permission in wanted)
    tested = ask("GET", f"/storage/v1/b/second/iam/testPermissions?{query}")
    assert tested.json["permissions"] == ["storage.objects.get", "storage.buckets.update"]
    put(ask, "x", b"")
    assert ask("DELETE", "/storage/v1/b/bucket").status == 409
    assert ask("DELETE", "/storage/v1/b/second").status == 204


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", ITEM + "x?alt=media", {"range": f"bytes={DIGITS}-"}),
        ("GET", ITEM + "x?alt=media", {"range": f"bytes=0-{DIGITS}"}),
        ("GET", ITEM + "x?alt=media", {"range": f"bytes=-{DIGITS}"}),
        ("GET", f"{ITEM}x?generation={DIGITS}", {}),
        ("GET", f"{ITEM}x?ifGenerationMatch=-{DIGITS}", {}),
        ("GET", f"/storage/v1/b/bucket/o?maxResults={DIGITS}", {}),
        ("POST", UPLOAD + "?uploadType=resumable&name=y", {"x_upload_content_length": DIGITS}),
        ("PUT", "", {"content_range": f"bytes 0-{DIGITS}/{DIGITS}"}),
        ("PUT", "", {"content_range": f"bytes {DIGITS}-*/5"}),
        ("PUT", "", {"content_range": f"bytes */{DIGITS}"}),
    ],
)
def test_a_number_of_thousands_of_digits_is_a_400(
    ask: Ask, method: str, target: str, headers: dict[str, str]
) -> None:
    """Python reads at most 4,300 digits. Without a target: of the next chunk of an upload."""
    put(ask, "x", b"hello")
    started = ask("POST", UPLOAD + "?uploadType=resumable&name=y")
    place = started.headers["location"].removeprefix("http://h:1")
    answer = ask(method, target or place, **headers)
    assert answer.status == 400, answer.body
    assert b"5000 digits" in answer.body
    assert ask("PUT", place, b"hello", content_range="bytes 0-4/5").status == 200


def test_a_batch_is_split_once_whatever_its_parts_say_that_they_are(ask: Ask) -> None:
    head = b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n"
    nested = b"".join(head % (n, n + 1) for n in range(5000))
    answer = ask("POST", "/batch/storage/v1", nested, content_type="multipart/mixed; boundary=b0")
    assert answer.status == 400


def test_a_batch_s_answer_is_bounded(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_MAX_ANSWER_BYTES", 100)
    part = b"--b\r\n\r\nGET %sx\r\n\r\n" % ITEM.encode()
    sent = {"content_type": "multipart/mixed; boundary=b", "content_encoding": "gzip"}
    answer = ask("POST", "/batch/storage/v1", gzip.compress(2 * part + b"--b--"), **sent)
    assert (answer.body.count(b"HTTP/1.1 404"), answer.body.count(b"HTTP/1.1 400")) == (1, 1)


def crc(content: bytes) -> str:
    digest = Digest()
    digest.update(content)
    return digest.sums().crc32c


def md5(content: bytes) -> str:
    digest = Digest()
    digest.update(content)
    return digest.sums().md5


def resumable(ask: Ask, resource: dict[str, str], **headers: str) -> str:
    """The address of a new session."""
    started = ask("POST", f"{UPLOAD}?uploadType=resumable&name=a", {**resource}, **headers)
    assert started.status == 200, started.body
    return "/" + started.headers["location"].split("/", 3)[3]


@pytest.mark.parametrize("kind", ["crc32c", "md5"])
@pytest.mark.parametrize("place", ["metadata", "start", "first", "last", "none"])
@pytest.mark.parametrize("is_right", [True, False])
def test_each_checksum_of_a_resumable_upload_counts(
    ask: Ask, kind: str, place: str, is_right: bool
) -> None:
    """A checksum from the start was dropped if the last part had one of its own, as the client of Python
    sends it."""
    digest = (crc if kind == "crc32c" else md5)(b"hello" if is_right else b"other")
    wrong = {"x_goog_hash": f"{kind}={digest}"}
    # What the client sends at the end is always right.
    right = {"x_goog_hash": f"crc32c={crc(b'hello')}"}
    field = "crc32c" if kind == "crc32c" else "md5Hash"
    at = resumable(
        ask, {field: digest} if place == "metadata" else {}, **(wrong if place == "start" else {})
    )
    first = ask(
        "PUT", at, b"he", content_range="bytes 0-1/*", **(wrong if place == "first" else {})
    )
    assert first.status == 308
    sent = wrong if place == "last" else right
    last = ask("PUT", at, b"llo", content_range="bytes 2-4/5", **sent)
    assert last.status == (200 if is_right or place == "none" else 400), last.body
    assert ask("GET", f"{ITEM}a").status == (200 if last.status == 200 else 404)


PARTS = (
    b"--x\r\nContent-Type: application/json\r\n\r\n%b\r\n"
    b"--x\r\nContent-Type: text/plain\r\n%b\r\nhello\r\n--x--\r\n"
)


def test_each_checksum_of_an_upload_in_one_request_counts(ask: Ask) -> None:
    """In headers (several of one name too), of a part, in the metadata, of the body, and in conflict."""
    good, bad = crc(b"hello"), crc(b"other")
    kinds = {"content_type": "multipart/related; boundary=x"}
    media, multipart_ = f"{UPLOAD}?uploadType=media&name=a", f"{UPLOAD}?uploadType=multipart&name=a"
    whole = PARTS % (b"{}", b"")
    wrong: list[tuple[str, str, bytes, dict[str, str]]] = [
        ("POST", media, b"hello", {"content_md5": md5(b"other")}),
        ("POST", media, b"hello", {"x_goog_hash": f"crc32c={good},crc32c={bad}"}),
        ("POST", media, b"hello", {"x_goog_hash": f"crc32c={good}, md5={md5(b'other')}"}),
        ("POST", media, b"hello", {"x_goog_hash": "sha256=abc"}),
        ("POST", media, b"hello", {"x_goog_hash": "crc32c=?"}),
        ("POST", multipart_, whole, {**kinds, "content_md5": md5(b"hello")}),
        ("POST", multipart_, PARTS % (b'{"crc32c":"%b"}' % bad.encode(), b""), kinds),
        (
            "POST",
            multipart_,
            PARTS % (b'{"crc32c":"%b"}' % bad.encode(), b""),
            {**kinds, "x_goog_hash": f"crc32c={good}"},
        ),
        ("POST", multipart_, PARTS % (b"{}", b"Content-MD5: abc\r\n"), kinds),
        ("POST", multipart_, PARTS % (b"{}", b"X-Goog-Hash: md5=abc\r\n"), kinds),
        ("PUT", "/bucket/a", b"hello", {"x_goog_hash": f"crc32c={good},md5=abc"}),
    ]
    for number, (method, target, body, headers) in enumerate(wrong):
        refused = ask(method, target, body, **headers)
        assert (refused.status, ask("GET", f"{ITEM}a").status) == (400, 404), number
    for headers in ({"content_md5": md5(whole)}, {"x_goog_hash": f"crc32c={good}"}):
        assert ask("POST", multipart_, whole, **kinds, **headers).status == 200
    for action in ("compose", "rewriteTo/b/bucket/o/b"):
        body = {"sourceObjects": [{"name": "a"}]}
        target = f"{ITEM}{'b/compose' if action == 'compose' else 'a/' + action}"
        assert ask("POST", target, body, x_goog_hash=f"crc32c={bad}").status == 400
        assert ask("GET", f"{ITEM}b").status == 404
    copied = {"x_goog_copy_source": "bucket/a"}
    assert ask("PUT", "/bucket/b", **copied, x_goog_hash=f"crc32c={bad}").status == 400
    assert ask("PUT", "/bucket/b", **copied, x_goog_hash=f"crc32c={good}").status == 200


def test_a_multipart_upload_has_the_checksum_that_its_client_announces(ask: Ask) -> None:
    """Of the XML API, at its start or its end."""
    for at_start, at_end in ((True, False), (False, True)):
        wrong = {"x_goog_hash": f"crc32c={crc(b'other')}"}
        started = ask("POST", "/bucket/m?uploads", **(wrong if at_start else {}))
        upload_id = started.body.decode().partition("<UploadId>")[2].partition("<")[0]
        part = ask("PUT", f"/bucket/m?partNumber=1&uploadId={upload_id}", b"hello")
        assert part.status == 200
        listed = "<M><Part><PartNumber>1</PartNumber></Part></M>"
        ended = ask(
            "POST", f"/bucket/m?uploadId={upload_id}", listed.encode(), **(wrong if at_end else {})
        )
        assert (ended.status, ask("GET", f"{ITEM}m").status) == (400, 404)


def test_clients_find_the_agent_of_a_project_and_settings_of_buckets(ask: Ask) -> None:
    number = project_number("p1")
    account = ask("GET", "/storage/v1/projects/p1/serviceAccount").json
    email = f"service-{number}@gs-project-accounts.iam.gserviceaccount.com"
    assert account == {"kind": "storage#serviceAccount", "email_address": email}
    refused = ask("GET", "/storage/v1/projects/p1/serviceAccount", caller=Caller("bo@test"))
    assert refused.status == 403
    assert ask("GET", "/storage/v1/projects/p1/hmacKeys").status == 400
    bucket = ask("GET", "/storage/v1/b/bucket").json
    assert (bucket["rpo"], bucket["hierarchicalNamespace"]) == ("DEFAULT", {"enabled": False})
