"""Secrets that other users could read or replace are closed at the start, and told; or it is refused."""

import os
import stat
from pathlib import Path

import pytest

from trainshed.serve.bootstrap import Exposed, close_to_others

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


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_can_write_to_is_closed(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    (warning,) = close_to_others(tmp_path)
    assert f"other users could write to {tmp_path} (mode {mode:04o})" in warning
    assert not tmp_path.stat().st_mode & 0o022
    assert not list(close_to_others(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: files of other users need root")
def test_a_strangers_secret_is_refused(tmp_path: Path) -> None:
    key, *_ = made(tmp_path, 0o600)
    os.chown(key, 4242, 4242)
    with pytest.raises(Exposed, match=r"owner\.token belongs to user 4242.*chown 0 "):
        list(close_to_others(tmp_path))
    os.chown(tmp_path, 4242, 4242)
    assert not list(close_to_others(tmp_path)), "in a directory of that user"
