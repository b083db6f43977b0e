"""Handing socket calls to a shim: where the kernel cannot, the program is to run without it."""

import errno
import socket

import pytest

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, socket_calls

NETWORK = protocol.Network(cluster_port=2222)


def test_a_kernel_without_such_filters_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor for a shell beside a guardian at rest, which was refused there."""

    def refuse(*, connect: bool) -> int:
        raise OSError(errno.EINVAL, "no listener")

    monkeypatch.setattr(call_filter, "install", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert socket_calls.be_asked(ours, NETWORK) is None
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
