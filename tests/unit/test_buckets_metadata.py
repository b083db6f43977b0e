"""What a program's client libraries learn from the metadata endpoint of its replica
(spec/program#credentials, spec/clients#metadata)."""

import json
from typing import Any

import pytest

from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.buckets.callers import read_preamble
from trainshed.buckets.metadata import Metadata
from trainshed.core.names import project_number
from trainshed.httpd.messages import Response

EMAIL = "trainer@p1.iam.gserviceaccount.com"
FLAVOR = {"metadata-flavor": "Google"}
V1 = "/computeMetadata/v1"
ACCOUNT = f"{V1}/instance/service-accounts/default"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


TOKENS = JobTokens(bytes(32), lambda: 1_760_000_000 * 10**9)
CLAIMS = JobClaims(1234567890123, 2, "workerpool1-3", "p1", EMAIL)


@pytest.fixture
def metadata() -> Metadata:
    return Metadata(TOKENS, lambda _: None)


def asked(metadata: Metadata, path: str, query: str = "", **more: Any) -> Response:
    answer = metadata.answer(path, query, more.pop("headers", FLAVOR), CLAIMS, region=None, **more)
    assert answer is not None and dict(answer.headers)[b"metadata-flavor"] == b"Google"
    assert dict(answer.headers)[b"content-length"] == b"%d" % len(answer.body)
    return answer


def text(metadata: Metadata, path: str, query: str = "") -> str:
    answer = asked(metadata, path, query)
    assert answer.status == 200, answer.body
    assert dict(answer.headers)[b"content-type"] in (b"application/text", b"text/html")
    return answer.body.decode()


def told(metadata: Metadata, path: str, query: str = "") -> Any:
    answer = asked(metadata, path, query)
    assert answer.status == 200, answer.body
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    return json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "computeMetadata/\n"),
        ("/", "computeMetadata/\n"),
        ("/computeMetadata/", "v1/\n"),
        (V1, "instance/\nproject/\nuniverse/\n"),
        (f"{V1}/", "instance/\nproject/\nuniverse/\n"),
        (f"{V1}/project/project-id", "p1"),
        (f"{V1}/project/numeric-project-id", str(project_number("p1"))),
        (f"{V1}/project/attributes/", ""),
        (f"{V1}/universe/universe-domain", "googleapis.com"),
        (f"{V1}/instance/service-accounts/", f"{EMAIL}/\ndefault/\n"),
        (f"{ACCOUNT}/", "aliases\nemail\nidentity\nscopes\ntoken\n"),
        (f"{ACCOUNT}/email", EMAIL),
        (f"{ACCOUNT}/aliases", "default\n"),
        (f"{ACCOUNT}/scopes", f"{SCOPE}\n"),
        (f"{V1}/instance/service-accounts/{EMAIL}/email", EMAIL),
    ],
)
def test_values_and_directories(metadata: Metadata, path: str, expected: str) -> None:
    assert text(metadata, path) == expected


def test_where_a_job_runs_as_far_as_it_is_known(metadata: Metadata) -> None:
    """Clients take the region from the zone."""
    job = {"project": "p1", "job_uid": "7", "replica": "workerpool1-3", "service_account": EMAIL}
    region = read_preamble(json.dumps(job | {"region": "europe-west4"}).encode()).caller.region
    number = project_number("p1")
    for name, expected in (
        ("zone", f"projects/{number}/zones/europe-west4-b"),
        ("region", f"projects/{number}/regions/europe-west4"),
    ):
        path = f"{V1}/instance/{name}"
        answer = metadata.answer(path, "", FLAVOR, CLAIMS, region=region)
        assert answer is not None and (answer.status, answer.body.decode()) == (200, expected)
        # Said by nobody.
        assert asked(metadata, path).status == 404


def test_a_token_for_whatever_scopes(metadata: Metadata) -> None:
    for account in ("default", EMAIL):
        path = f"{V1}/instance/service-accounts/{account}/token"
        shown = told(metadata, path, f"scopes={SCOPE}")
        assert TOKENS.read(shown["access_token"]) == CLAIMS
        assert (shown["expires_in"], shown["token_type"]) == (3600, "Bearer")


def test_all_of_it_at_once(metadata: Metadata) -> None:
    whole = told(metadata, f"{V1}/", "recursive=true")
    number = project_number("p1")
    assert whole["project"] == {"attributes": {}, "numericProjectId": number, "projectId": "p1"}
    assert set(whole["instance"]["serviceAccounts"]) == {EMAIL, "default"}
    assert whole["instance"]["name"].endswith("-3")
    assert whole["instance"]["hostname"] == f"{whole['instance']['name']}.c.p1.internal"
    assert 0 < whole["instance"]["id"] < 2**63
    assert "token" not in json.dumps(whole)


def test_an_identity_token_needs_an_audience(metadata: Metadata) -> None:
    path = f"{ACCOUNT}/identity"
    token = text(metadata, path, "audience=https://a&format=full")
    assert token == TOKENS.identity_token(CLAIMS, "https://a")
    refused = asked(metadata, path)
    assert (refused.status, refused.body) == (400, b"non-empty audience parameter required\n")


@pytest.mark.parametrize("headers", [{}, {"metadata-flavor": "google"}, {"x-google": "True"}])
def test_nothing_is_said_without_the_header(metadata: Metadata, headers: dict[str, str]) -> None:
    """Who makes a browser or a server ask on his behalf cannot set it."""
    for path in (V1, f"{V1}/", f"{ACCOUNT}/token", f"{V1}/no/such/thing"):
        refused = asked(metadata, path, headers=headers)
        assert refused.status == 403
        assert b"Metadata-Flavor:Google" in refused.body
    assert asked(metadata, "/", headers=headers).status == 200


def test_a_request_that_was_forwarded_is_refused(metadata: Metadata) -> None:
    headers = FLAVOR | {"x-forwarded-for": "10.0.0.1"}
    assert asked(metadata, f"{ACCOUNT}/token", headers=headers).status == 403
