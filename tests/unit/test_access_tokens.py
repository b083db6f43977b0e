"""Tokens: issued once, stored hashed, recognised after a restart, refused with advice."""

import stat
from pathlib import Path

import pytest

from trainshed.access.principals import Principal
from trainshed.access.tokens import TokenAuthority, TokenFileUnreadable
from trainshed.core.errors import Unauthenticated

OWNER = Principal("owner@example.com")


def opened(directory: Path) -> TokenAuthority:
    return TokenAuthority.open(directory / "access" / "tokens.json", lambda: 7)


def test_an_issued_token_is_recognised_also_after_reopening(tmp_path: Path) -> None:
    token = opened(tmp_path).issue(OWNER)
    assert opened(tmp_path).authenticate(f"Bearer {token}") == OWNER


def test_two_tokens_of_one_principal_both_work_and_are_revoked_together(tmp_path: Path) -> None:
    authority = opened(tmp_path)
    first, second = authority.issue(OWNER), authority.issue(OWNER)
    kept = authority.issue(Principal("other@example.com"))
    assert authority.authenticate(f"bearer {second}") == OWNER
    assert authority.revoke(OWNER) == 2
    for gone in (first, second):
        with pytest.raises(Unauthenticated):
            opened(tmp_path).authenticate(f"Bearer {gone}")
    assert opened(tmp_path).authenticate(f"Bearer {kept}").email == "other@example.com"


def test_the_file_holds_no_token_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    token = opened(tmp_path).issue(OWNER)
    (file,) = (tmp_path / "access").iterdir()
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "tokens": []}', '{"format": 1}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(TokenFileUnreadable, match=r"tokens\.json"):
        TokenAuthority.open(path, lambda: 7)
