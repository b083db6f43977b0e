"""The owner's token is there, and known to the service, whatever a crash or an operator left behind."""

import stat
from pathlib import Path

import pytest

from trainshed.access.tokens import TokenAuthority
from trainshed.serve.bootstrap import owner_token


def opened(directory: Path) -> TokenAuthority:
    return TokenAuthority.open(directory / "tokens.json", lambda: 0)


def test_the_token_stays_the_same_from_start_to_start(tmp_path: Path) -> None:
    token = owner_token(tmp_path, opened(tmp_path))
    assert owner_token(tmp_path, opened(tmp_path)) == token
    assert stat.S_IMODE((tmp_path / "owner.token").stat().st_mode) == 0o600


@pytest.mark.parametrize("left", ["", "a token that was issued by a file which was moved away"])
def test_a_token_that_is_not_known_is_replaced(tmp_path: Path, left: str) -> None:
    """A crash may have left an empty file; an operator may have moved the token file away, as its error
    says."""
    (tmp_path / "owner.token").write_text(left)
    token = owner_token(tmp_path, opened(tmp_path))
    assert opened(tmp_path).authenticate(f"Bearer {token}").email
    assert (tmp_path / "owner.token").read_text().strip() == token
