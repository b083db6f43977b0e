"""Signed URLs of service accounts, created by the unmodified client (spec/clients#storage)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from msgspec.structs import replace

from tests.contract.buckets_service import MIB, Service, client_at, send_request
from trainshed.access.account_tokens import new_key
from trainshed.access.book import AccessBook, AccountKey, ServiceAccount
from trainshed.access.policy import Grant
from trainshed.buckets.callers import storage_key

EMAIL = "ci@p.iam.gserviceaccount.com"
NAME = "dir/a name ü+%2F~.txt"


class Signer:
    """A service account with a key, and the client that signs with it."""

    def __init__(self, service: Service) -> None:
        public, self.private = new_key()
        self.key = AccountKey("k1", EMAIL, public, 0, "127.0.0.1")
        self.account = ServiceAccount(EMAIL, "p", 0)
        self.service = service
        self.address = f"http://127.0.0.1:{service.port}"
        self.grant("roles/aiplatform.user")

    def grant(self, role: str) -> None:
        book = AccessBook().with_account(self.account).with_key(self.key)
        self.publish(book.with_grants("p", [Grant("p", role, f"serviceAccount:{EMAIL}")]))

    def publish(self, book: AccessBook) -> None:
        self.service.tokens.replace(book)
        self.service.publish()

    def credentials(self) -> Any:
        kind: Any = import_module("google.oauth2.service_account").Credentials
        info = {"client_email": EMAIL, "private_key": self.private, "token_uri": "http://h/token"}
        return kind.from_service_account_info(info)

    def blob(self, name: str = NAME) -> Any:
        return client_at(self.address).bucket("bucket-p").blob(name)

    def url(self, method: str = "GET", name: str = NAME, **more: Any) -> str:
        more.setdefault("expiration", timedelta(minutes=5))
        return self.blob(name).generate_signed_url(
            version="v4", method=method, credentials=self.credentials(), **more
        )

    def send(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request as a client that has only the URL."""
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        host = {"Host": parts.netloc}
        return send_request(self.service.port, method, target, body, {**host, **(headers or {})})


@pytest.fixture
def signer(tmp_path: Path) -> Iterator[Signer]:
    with Service(tmp_path) as service:
        for bucket, project in (("bucket-p", "p"), ("bucket-q", "q")):
            service.call("POST", f"/storage/v1/b?project={project}", {"name": bucket})
            service.put(bucket, quote(NAME, safe=""), b"content")
        yield Signer(service)


def code(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    match = re.search(r"<Code>(\w+)</Code>", answer[2].decode())
    return answer[0], match[1] if match else ""


def test_signed_url_permits_only_the_http_method_that_was_signed(signer: Signer) -> None:
    assert signer.send("GET", signer.url())[2] == b"content"
    status, headers, _ = signer.send("HEAD", signer.url("HEAD"))
    assert (status, headers["content-length"]) == (200, "7")
    put = signer.url("PUT", content_type="text/csv", headers={"x-goog-meta-k": "a  b"})
    sent = {"Content-Type": "text/csv", "x-goog-meta-k": "a  b"}
    assert signer.send("PUT", put, b"new", sent)[0] == 200
    _, headers, body = signer.send("GET", signer.url())
    assert (headers["content-type"], headers["x-goog-meta-k"], body) == ("text/csv", "a  b", b"new")
    assert signer.send("DELETE", signer.url("DELETE"))[0] == 204
    assert code(signer.send("GET", signer.url())) == (404, "NoSuchKey")


def test_signed_download_can_set_name_and_type(signer: Signer) -> None:
    url = signer.url(response_disposition='attachment; filename="x.csv"', response_type="text/csv")
    _, headers, _ = signer.send("GET", url)
    assert headers["content-disposition"] == 'attachment; filename="x.csv"'
    assert headers["content-type"] == "text/csv"


def test_resumable_upload_url_permits_no_reads(signer: Signer) -> None:
    """The address is valid for a week. A holder of the signed URL may only upload one object."""
    start = signer.url("RESUMABLE", "large")
    _, answer, _ = signer.send("POST", start, headers={"x-goog-resumable": "start"})
    session = urlsplit(answer["location"]).query
    for path in ("/bucket-p", "/bucket-p/", f"/bucket-p/{quote(NAME)}"):
        place = f"{signer.address}{path}?{session}"
        assert [signer.send(method, place)[0] for method in ("GET", "HEAD")] == [401, 401], path
        assert signer.send("POST", place, headers={"X-HTTP-Method-Override": "GET"})[0] == 401
    assert signer.send("PUT", answer["location"], b"x")[0] == 200


def test_resumable_upload_url_is_sufficient_to_continue_the_upload(signer: Signer) -> None:
    headers = {"x-goog-resumable": "start", "Content-Type": "text/plain"}
    start = signer.url("RESUMABLE", "large", content_type="text/plain")
    assert code(signer.send("POST", start, headers={"Content-Type": "text/plain"}))[0] == 400
    status, answer, _ = signer.send("POST", start, headers=headers)
    assert status == 201
    place = answer["location"]
    assert storage_key(signer.service.token) not in place
    first = {"Content-Range": f"bytes 0-{MIB - 1}/{2 * MIB}"}
    status, answer, _ = signer.send("PUT", place, b"a" * MIB, first)
    assert (status, answer["range"]) == (308, f"bytes=0-{MIB - 1}")
    last = {"Content-Range": f"bytes {MIB}-{2 * MIB - 1}/{2 * MIB}"}
    signer.grant("roles/storage.objectViewer")
    assert code(signer.send("PUT", place, b"b" * MIB, last)) == (403, "AccessDenied")
    signer.grant("roles/aiplatform.user")
    assert signer.send("PUT", place, b"b" * MIB, last)[0] == 200
    assert signer.send("GET", signer.url(name="large"))[2] == b"a" * MIB + b"b" * MIB
    signer.publish(replace(signer.service.tokens.book, keys={}))
    assert code(signer.send("PUT", place, b"b" * MIB, last)) == (403, "AccessDenied")


def test_signed_url_may_have_the_bucket_in_the_host(signer: Signer) -> None:
    signer.address = f"http://localhost:{signer.service.port}"
    url = signer.url(virtual_hosted_style=True)
    assert urlsplit(url).netloc == f"bucket-p.localhost:{signer.service.port}"
    assert signer.send("GET", url)[2] == b"content"
    other = url.replace("bucket-p.", "bucket-q.")
    assert code(signer.send("GET", other)) == (403, "SignatureDoesNotMatch")


def test_signed_url_has_the_accounts_current_permissions(signer: Signer) -> None:
    get, put = signer.url(), signer.url("PUT")
    signer.grant("roles/storage.objectViewer")
    assert signer.send("GET", get)[0] == 200
    assert code(signer.send("PUT", put, b"x")) == (403, "AccessDenied")
    other = client_at(signer.address).bucket("bucket-q").blob(NAME)
    url = other.generate_signed_url(version="v4", expiration=60, credentials=signer.credentials())
    assert code(signer.send("GET", url)) == (403, "AccessDenied")
    book = signer.service.tokens.book
    signer.publish(replace(book, accounts={EMAIL: replace(signer.account, disabled=True)}))
    assert signer.send("GET", get)[0] == 403
    signer.publish(replace(book, keys={}))
    assert code(signer.send("GET", get)) == (403, "SignatureDoesNotMatch")
    # The key of another account is not valid for this one.
    signer.publish(book.with_key(replace(signer.key, email="x@p.iam.gserviceaccount.com")))
    assert code(signer.send("GET", get)) == (403, "SignatureDoesNotMatch")


def url_of_age(signer: Signer, seconds: float, expiration: int = 60) -> str:
    """Return a URL that was signed this number of seconds from now."""
    sign: Any = import_module("google.cloud.storage._signing").generate_signed_url_v4
    moment = datetime.fromtimestamp(time.time() + seconds, UTC)
    return sign(
        signer.credentials(),
        f"/bucket-p/{quote(NAME, safe='/~')}",
        expiration,
        api_access_endpoint=signer.address,
        _request_timestamp=moment.strftime("%Y%m%dT%H%M%SZ"),
    )


def test_signed_url_is_valid_only_in_its_time_range(signer: Signer) -> None:
    assert signer.send("GET", url_of_age(signer, -50))[0] == 200
    assert code(signer.send("GET", url_of_age(signer, -61))) == (400, "ExpiredToken")
    assert code(signer.send("GET", url_of_age(signer, -8 * 86_400, 7 * 86_400)))[0] == 400
    assert signer.send("GET", url_of_age(signer, 600))[0] == 200
    assert code(signer.send("GET", url_of_age(signer, 1200))) == (403, "SignatureDoesNotMatch")


def altered_requests(url: str) -> list[tuple[str, str]]:
    """Return (method, URL) of requests that differ from the signed one."""
    signature = re.search(r"X-Goog-Signature=(\w+)", url)
    assert signature is not None
    flipped = f"{int(signature[1], 16) ^ 1:x}".zfill(len(signature[1]))
    return [
        *((method, url) for method in ("HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS")),
        ("GET", url.replace("/bucket-p/", "/bucket-q/")),
        ("GET", url.replace("/bucket-p/", "//bucket-p/")),
        ("GET", url.replace("/bucket-p/dir/", "/bucket-p/dir%252F")),
        ("GET", url.replace("/bucket-p/dir/", "/bucket-p/./dir/")),
        ("GET", url.replace("/bucket-p/dir/", "/bucket-p/x/../dir/")),
        ("GET", url.replace("/dir/", "/DIR/")),
        ("GET", url.replace("?", "?generation=1&")),
        ("GET", url + "&response-content-type=text/html"),
        ("GET", url + "&x="),
        ("GET", url + "&" + "x" * 20_000),
        ("GET", url.replace("X-Goog-Expires=300", "X-Goog-Expires=604800")),
        ("GET", url.replace("X-Goog-Expires=300", "X-Goog-Expires=0300")),
        ("GET", url.replace("X-Goog-Expires=300", "X-Goog-Expires=604801")),
        ("GET", url.replace("X-Goog-Expires=300", "X-Goog-Expires=-1")),
        ("GET", url.replace("X-Goog-Expires=300", "X-Goog-Expires=%D9%A3%D9%A0")),
        ("GET", url + "&X-Goog-Expires=604800"),
        ("GET", url.replace("X-Goog-Date=", "X-Goog-Date=20990101T000000Z&X-Goog-Date=")),
        ("GET", url.replace("X-Goog-SignedHeaders=host", "X-Goog-SignedHeaders=")),
        ("GET", url.replace("X-Goog-SignedHeaders=host", "X-Goog-SignedHeaders=host%3Bhost")),
        ("GET", url.replace("ci%40p.", "other%40p.")),
        ("GET", url.replace("GOOG4-RSA-SHA256", "GOOG4-HMAC-SHA256")),
        ("GET", url.replace("GOOG4-RSA-SHA256", "AWS4-HMAC-SHA256")),
        ("GET", url.replace("GOOG4-RSA-SHA256", "none")),
        ("GET", url.replace(signature[1], flipped)),
        ("GET", url.replace(signature[1], "")),
        ("GET", url.replace(signature[1], "00" * 256)),
        ("GET", url.replace(signature[1], "zz")),
        ("GET", url.replace("X-Goog-Signature", "x-goog-signature")),
        ("GET", url.replace("X-Goog-Signature", "X-Goog-S%69gnatur")),
    ]


def test_request_that_differs_from_the_signed_request_is_rejected(signer: Signer) -> None:
    """The difference is in the method, path, query, signature or algorithm. It is rejected even if the same
    request contains the owner's token."""
    url = signer.url()
    everybody = {"role": "roles/storage.objectViewer", "members": ["allUsers"]}
    policy = "/storage/v1/b/bucket-p/iam"
    for number, (method, request) in enumerate(altered_requests(url)):
        assert request != url or method != "GET", number
        for headers in ({}, signer.service.bearer):
            status, _, body = signer.send(method, request, b"", headers)
            assert status in (400, 403), (number, method, request, status, body)
            assert body != b"content"
    assert signer.service.call("PUT", policy, {"bindings": [everybody]})[0] == 200
    # The request is also not treated as anonymous.
    assert signer.send("GET", url.replace("-p/", "-p/x"))[0] == 403
    assert signer.send("GET", url)[2] == b"content"


def test_equivalent_path_spellings_have_the_same_signature(signer: Signer) -> None:
    url = signer.url()
    for old, new in (("/dir/", "/d%69r/"), ("/dir/", "/dir%2F"), ("~", "%7E"), ("%C3", "%c3")):
        assert old in url
        assert signer.send("GET", url.replace(old, new, 1))[2] == b"content"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 403),
        ({"x-goog-meta-k": "v"}, 400),
        ({"x-goog-copy-source": "bucket-q/x"}, 400),
        ({"X-HTTP-Method-Override": "DELETE"}, 200),
    ],
)
def test_signed_url_requires_its_signed_headers_unchanged(
    signer: Signer, headers: dict[str, str], status: int
) -> None:
    assert signer.send("GET", signer.url(), headers=headers)[0] == status


def test_signed_post_does_not_permit_other_methods(signer: Signer) -> None:
    url = signer.url("RESUMABLE")
    headers = {"x-goog-resumable": "start", "X-HTTP-Method-Override": "DELETE"}
    assert code(signer.send("POST", url, headers=headers)) == (403, "SignatureDoesNotMatch")


def test_signed_url_whose_address_contains_a_storage_key_is_rejected(signer: Signer) -> None:
    """STORAGE_EMULATOR_HOST of `trainshed env` contains a key that gives access to all buckets without
    expiry."""
    signer.address = signer.service.address()
    url = signer.url(expiration=1)
    assert storage_key(signer.service.token) in url
    status, _, body = signer.send("GET", url)
    assert (status, b"contains the secret key of a token" in body) == (400, True)
    plain_url = signer.url(api_access_endpoint=f"http://127.0.0.1:{signer.service.port}")
    assert signer.send("GET", plain_url)[2] == b"content"


def test_error_names_the_unsupported_signature_version(signer: Signer) -> None:
    url = signer.blob().generate_signed_url(60, credentials=signer.credentials(), version="v2")
    status, _, body = signer.send("GET", url, headers=signer.service.bearer)
    assert (status, b"version 4" in body) == (400, True)
    for query in ("X-Amz-Signature=1", "AWSAccessKeyId=1&Signature=2"):
        status, _, body = signer.send("GET", f"{signer.address}/bucket-p/x?{query}")
        assert (status, b"HMAC" in body) == (400, True)


def test_json_api_rejects_signed_urls(signer: Signer) -> None:
    query = urlsplit(signer.url()).query
    target = f"/storage/v1/b/bucket-p/o/{quote(NAME, safe='')}?{query}"
    status, _, body = send_request(signer.service.port, "GET", target, headers=signer.service.bearer)
    assert (status, json.loads(body)["error"]["code"]) == (400, 400)
