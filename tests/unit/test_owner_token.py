"""The owner's token is there, whatever a crash or an operator left behind."""

import stat
from pathlib import Path

from trainshed.serve.bootstrap import owner_token


def test_the_token_stays_the_same_and_a_lost_one_is_made_anew(tmp_path: Path) -> None:
    """Who has lost it, or given it away, removes the file and starts the service again. A crash may have
    left an empty one."""
    token = owner_token(tmp_path)
    file = tmp_path / "owner.token"
    assert owner_token(tmp_path) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    second = owner_token(tmp_path)
    file.write_text("")
    assert len({token, second, owner_token(tmp_path)}) == 3
