"""What is its user's alone: a data directory that other users could enter is closed at the start, and told,
or refused; the owner's token; sockets."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainshed.replica.system import listening, unix_sockets
from trainshed.serve.bootstrap import owner_token
from trainshed.serve.data_directory import Exposed, close_to_others


@pytest.mark.parametrize(("mode", "closed"), [(0o777, 0o750), (0o775, 0o750), (0o705, 0o700)])
def test_a_directory_that_others_can_enter_is_closed_and_told_once(
    tmp_path: Path, mode: int, closed: int
) -> None:
    tmp_path.chmod(mode)
    assert f"Other users could enter {tmp_path} (mode {mode:04o})" in str(close_to_others(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == closed
    assert close_to_others(tmp_path) is None


def test_a_directory_that_all_others_need_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # As /tmp is.
    with pytest.raises(Exposed, match="Choose a directory below it"):
        close_to_others(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_the_token_stays_the_same_and_a_lost_one_is_made_anew(tmp_path: Path) -> None:
    """Who has given it away removes the file and starts the service again. A crash may leave an empty one."""
    token, file = owner_token(tmp_path), tmp_path / "owner.token"
    assert owner_token(tmp_path) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    second = owner_token(tmp_path)
    file.write_text("")
    assert len({token, second, owner_token(tmp_path)}) == 3


def test_a_socket_is_its_users_alone_and_nothing_else_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other threads make while it is made has the rights that it always has: a directory made just then
    could not be entered, and a first start failed by it now and then."""
    made = tmp_path / "made-meanwhile"
    path = unix_sockets.reachable

    @contextmanager
    def slowly(place: str) -> Generator[str]:
        made.mkdir()
        with path(place) as short:
            yield short

    monkeypatch.setattr(unix_sockets, "reachable", slowly)
    before = os.umask(0o022)
    try:
        listening.listen_unix(tmp_path / "socket").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
