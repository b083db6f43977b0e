"""Private files: the data directory, the owner's token and sockets are closed to other users."""

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
def test_open_data_directory_is_closed_and_logged_once(tmp_path: Path, mode: int, closed: int) -> None:
    tmp_path.chmod(mode)
    assert f"Other users could enter {tmp_path} (mode {mode:04o})" in str(close_to_others(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == closed
    assert close_to_others(tmp_path) is None


def test_shared_system_directory_is_rejected_as_data_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # like /tmp
    with pytest.raises(Exposed, match="Choose a directory below it"):
        close_to_others(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_owner_token_is_kept_and_recreated_if_deleted(tmp_path: Path) -> None:
    """To replace an exposed token, the owner deletes the file and restarts the service. A crash may leave an
    empty file."""
    token, file = owner_token(tmp_path), tmp_path / "owner.token"
    assert owner_token(tmp_path) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    second = owner_token(tmp_path)
    file.write_text("")
    assert len({token, second, owner_token(tmp_path)}) == 3


def test_creating_a_private_socket_does_not_change_the_umask_of_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that other threads create at the same time keep their normal modes."""
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
