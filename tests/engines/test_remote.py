"""The conformance suite on the remote engine, over nodes that are processes of this machine."""

import os
import socket
from pathlib import Path

import pytest

from tests.engines.remote_lab import RemoteLab
from trainshed.engines.conformance.lab import Lab
from trainshed.engines.conformance.suite import Conformance


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")
class TestRemote(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return RemoteLab(tmp_path, port)
