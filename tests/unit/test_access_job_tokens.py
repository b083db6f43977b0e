"""Tokens of programs: contents, lifetime and protection against forgery (spec/program#storage)."""

import base64
import json
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from trainshed.access.book import AccessBook
from trainshed.access.job_tokens import KEY_FILE, LIFETIME, JobClaims, JobKeyUnreadable, JobTokens
from trainshed.access.tokens import TokenAuthority
from trainshed.core.errors import Unauthenticated

SECOND = 10**9
START = 1_760_000_000 * SECOND
CLAIMS = JobClaims(17, 2, "workerpool1-0", "p1", "trainer@p1.iam.gserviceaccount.com")
KEY = bytes(range(32))


def clock() -> int:
    return START


def test_job_token_identifies_its_program_until_the_token_expires() -> None:
    """spec/program#credentials: short-lived, scoped to the job's project."""
    now = START
    tokens = JobTokens(KEY, lambda: now)
    token, seconds = tokens.mint(CLAIMS)
    assert seconds == LIFETIME == 3600
    assert tokens.read(token) == CLAIMS
    now += LIFETIME * SECOND - 1
    assert tokens.read(token) == CLAIMS
    now += 1
    assert tokens.read(token) is None


def test_forged_or_modified_token_is_rejected() -> None:
    tokens = JobTokens(KEY, clock)
    token, _ = tokens.mint(CLAIMS)
    version, payload, signature = token.split(".")
    fields = json.loads(base64.urlsafe_b64decode(payload + "=="))
    for place, value in enumerate((18, 3, "workerpool0-0", "p2", "other@x", fields[5] + 1)):
        text = json.dumps([*fields[:place], value, *fields[place + 1 :]], separators=(",", ":"))
        changed = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert tokens.read(f"{version}.{changed}.{signature}") is None
    for wrong in ("", signature[:-1], signature + "A", signature.swapcase()):
        assert tokens.read(f"{version}.{payload}.{wrong}") is None
    assert JobTokens(KEY, clock).read(token) == CLAIMS
    assert JobTokens(bytes(32), clock).read(token) is None


def test_identity_token_is_a_jwt_with_an_audience_and_is_rejected_as_access_token() -> None:
    """spec/clients#metadata: clients decode the identity token as a JWT."""
    tokens = JobTokens(KEY, clock)
    token = tokens.identity_token(CLAIMS, "https://there")
    header, payload, _ = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "HS256", "typ": "JWT"}
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    assert (claims["aud"], claims["email"]) == ("https://there", CLAIMS.email)
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["iat"] == START // SECOND
    assert tokens.read(token) is None


def test_key_file_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "data" / KEY_FILE
    token, _ = JobTokens.open(path, clock).mint(CLAIMS)
    assert JobTokens.open(path, clock).read(token) == CLAIMS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert [file.name for file in path.parent.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("content", ["", "00", "no hexadecimal digits", "00" * 33])
def test_malformed_key_file_causes_an_error_with_the_file_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / KEY_FILE
    path.write_text(content)
    with pytest.raises(JobKeyUnreadable, match=KEY_FILE):
        JobTokens.open(path, clock)


def test_job_token_of_an_attempt_that_has_ended_is_rejected() -> None:
    jobs = JobTokens(KEY, clock)
    authority = TokenAuthority(AccessBook(), "", clock, jobs)
    authority.refuse(lambda claims: claims.attempt < 2)
    now, _ = jobs.mint(CLAIMS)
    before, _ = jobs.mint(replace(CLAIMS, attempt=1))
    principal = authority.authenticate(f"Bearer {now}")
    assert principal.program == CLAIMS and authority.is_valid(principal)
    with pytest.raises(Unauthenticated, match=r"attempt 1 of the job 17, which has ended"):
        authority.authenticate(f"Bearer {before}")
    late, _ = jobs.mint(CLAIMS, 0)
    with pytest.raises(
        Unauthenticated, match=r"has expired, or was not issued by this service\. Request a new token"
    ):
        authority.authenticate(f"Bearer {late}")
    authority.refuse(lambda _: True)
    assert not authority.is_valid(principal), "requests in progress lose their permission"
