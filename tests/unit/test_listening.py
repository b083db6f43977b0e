"""Sockets that only our own user may call."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainshed.replica.system import listening, unix_sockets


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
