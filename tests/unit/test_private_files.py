"""What is its user's alone: secrets that other users could read or replace are closed at the start, and told,
or it is refused; the owner's token; sockets."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainshed.replica.system import listening, unix_sockets
from trainshed.serve.bootstrap import Exposed, close_to_others, owner_token

OPEN = ("owner.token", "access.json", "jobs.key", "secrets.key", "sessions.json", "tls/ca.key")


def made(data: Path, mode: int) -> list[Path]:
    files = [data / name for name in OPEN]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
        path.chmod(mode)
    return files


@pytest.mark.parametrize("mode", [0o666, 0o640, 0o604])
def test_open_secrets_are_closed_and_told_once(tmp_path: Path, mode: int) -> None:
    files = made(tmp_path, mode)
    (tmp_path / "tls" / "ca.pem").touch(mode=0o644)
    (warning,) = close_to_others(tmp_path)
    assert all(f"{name} ({mode:04o})" in warning for name in OPEN) and "ca.pem" not in warning
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not list(close_to_others(tmp_path))


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_can_write_to_is_closed(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    (warning,) = close_to_others(tmp_path)
    assert f"other users could write to {tmp_path} (mode {mode:04o})" in warning
    assert not tmp_path.stat().st_mode & 0o022
    tmp_path.chmod(0o1777)  # As /tmp is, which all others need.
    with pytest.raises(Exposed, match="Choose a directory below it"):
        list(close_to_others(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: files of other users need root")
def test_a_strangers_secret_is_refused(tmp_path: Path) -> None:
    key, *_ = made(tmp_path, 0o600)
    os.chown(key, 4242, 4242)
    with pytest.raises(Exposed, match=r"owner\.token belongs to user 4242.*chown 0 "):
        list(close_to_others(tmp_path))
    os.chown(tmp_path, 4242, 4242)
    assert not list(close_to_others(tmp_path)), "in a directory of that user"


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
