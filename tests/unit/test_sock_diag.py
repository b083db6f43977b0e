"""What the kernel tells of Unix sockets."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainshed.replica.sandbox import view
from trainshed.replica.system import sock_diag

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")


def told() -> set[str]:
    return {path for _, paths in sock_diag.unix_paths() for path in paths}


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "näme with blanks_7.0"))
        yield one


def test_a_socket_is_told_by_its_path_as_long_as_it_is_there(bound: socket.socket) -> None:
    path = bound.getsockname()
    assert path in told()
    bound.listen()
    assert path in told()
    bound.close()
    assert path not in told()


def test_connections_are_not_told(bound: socket.socket) -> None:
    bound.listen()
    path = bound.getsockname()
    with socket.socket(socket.AF_UNIX) as calls:
        calls.connect(path)
        connection = bound.accept()[0]
        bound.close()
        with connection:
            assert path not in told()


def test_steps_are_found_where_the_kernel_prints_alone(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(Path(bound.getsockname()).parent)
    Path(directory).chmod(0o755)
    assert directory in view.of_slurms_steps()

    def refused(groups: int = 0) -> socket.socket:
        raise OSError(groups, "no netlink here")

    monkeypatch.setattr(sock_diag, "listen", refused)
    assert directory in view.of_slurms_steps()
