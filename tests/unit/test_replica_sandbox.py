"""Tests of a sandbox with missing resources or refused calls, and of the user of an image's program."""

import errno
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, mounts, socket_calls
from trainshed.replica.sandbox.mounts import user_of
from trainshed.replica.supervisor import isolation_probe, start
from trainshed.replica.system import kernel

_USER = protocol.LEVEL_USER


@pytest.fixture
def fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that makes each attempt of the probe fail with an error."""
    # A child that collects gRPC's garbage would wait forever for a thread that it does not have.
    gc.disable()

    def arrange(error: BaseException | int) -> None:
        def enclose(*_: object) -> None:
            if not isinstance(error, int):
                raise error
            os.kill(os.getpid(), error)

        monkeypatch.setattr(start, "enclose", enclose)

    yield arrange
    gc.enable()


def _probe(tmp_path: Path) -> protocol.Message:
    return isolation_probe.probe(str(tmp_path / "slot"), (_USER, protocol.LEVEL_SESSION))


_SHORTAGES = [
    OSError(errno.ENOSPC, "No space left on device", "/some/file"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files in system"),
    OSError(errno.ENOMEM, "unshare(0x20000000): Cannot allocate memory"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    MemoryError(),
    signal.SIGKILL,
]


@pytest.mark.parametrize("shortage", _SHORTAGES, ids=repr)
def test_isolation_probe_reports_an_error_after_a_temporary_lack_of_resources(
    shortage: BaseException | int, tmp_path: Path, fail: Callable[..., None]
) -> None:
    """A temporary shortage must not lead to a weaker isolation level."""
    fail(shortage)
    failed = _probe(tmp_path)["failed"]
    assert failed.startswith("isolation cannot be probed: ") and failed.endswith(" (at level user)")


@pytest.mark.parametrize(
    "refusal",
    [
        PermissionError(errno.EPERM, "unshare(0x10000000): Operation not permitted"),
        OSError(errno.ENOSYS, "mount_setattr: Function not implemented"),
        signal.SIGSYS,
    ],
    ids=repr,
)
def test_isolation_probe_selects_a_weaker_level_after_a_permanent_refusal(
    refusal: BaseException | int, tmp_path: Path, fail: Callable[..., None]
) -> None:
    fail(refusal)
    result = _probe(tmp_path)
    assert result["level"] == protocol.LEVEL_SESSION
    assert result["refused"][_USER]


def test_namespace_limit_is_not_reported_as_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel uses the same error number for both (user_namespaces(7)), but the namespace limit is
    permanent."""
    refusal = OSError(errno.ENOSPC, "unshare(0x10000000): No space left on device")
    monkeypatch.setattr(kernel, "_call", Mock(side_effect=refusal))
    with pytest.raises(PermissionError):
        kernel.unshare(kernel.CLONE_NEWUSER)


def test_path_to_hide_that_cannot_be_examined_causes_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program might be able to read a path that the service cannot read, so the path must not stay
    visible."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (tmp_path / "file").touch()
    missing, beyond = tmp_path / "missing", tmp_path / "file" / "beyond"
    assert mounts.is_directory(str(hidden))
    for other in (tmp_path / "file", missing, beyond):
        assert not mounts.is_directory(str(other))

    def stat(path: str) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        with pytest.raises(PermissionError):
            mounts.is_directory(str(hidden))


NETWORK = protocol.Network(cluster_port=2222)


def test_kernel_without_seccomp_notifications_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: bool) -> int:
        raise OSError(errno.EINVAL, "no listener")

    monkeypatch.setattr(call_filter, "install", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert socket_calls.install(ours, NETWORK) is None
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, 0, "/root")),
        ("ada", (1000, 1000, "/home/ada")),
        ("1000", (1000, 1000, "/home/ada")),
        ("ada:crew", (1000, 2000, "/home/ada")),
        (":crew", (0, 2000, "/root")),
        ("7", (7, 0, "/")),
    ],
)
def test_user_of_an_image_is_resolved_with_the_passwd_file_of_the_image(
    tmp_path: Path, text: str, expected: tuple[int, int, str]
) -> None:
    """spec/program#hostnames: A container runs as its image's user, given by name or number."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\ncrew:x:2000:\n")
    assert user_of(text, str(tmp_path)) == expected


def test_pipe_in_place_of_the_passwd_file_of_an_image_does_not_block(tmp_path: Path) -> None:
    """The program may have replaced the file by a pipe before a restart."""
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/passwd")
    looker = threading.Thread(target=user_of, args=("7", str(tmp_path)), daemon=True)
    looker.start()
    looker.join(60)
    assert not looker.is_alive()
