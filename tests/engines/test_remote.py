"""The conformance suite on the remote engine, over nodes that are processes of this machine."""

import os
import socket
from pathlib import Path

import pytest

from tests.engines.remote_lab import RemoteLab, new_engine
from trainshed.engines.conformance.lab import Lab
from trainshed.engines.conformance.suite import Conformance
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")
class TestRemote(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return RemoteLab(tmp_path, port)


@pytest.mark.anyio
@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")
async def test_what_nodes_can_do_is_guessed_by_this_machine_until_one_tells(tmp_path: Path) -> None:
    """The first job of a service may be a container, which is refused where there are no namespaces."""
    here = LocalEngine(tmp_path / "here", Options())
    engine = new_engine(tmp_path, 0, here=here)
    await engine.start()
    try:
        assert engine.capabilities() == here.capabilities()
        assert engine.capabilities().isolation
    finally:
        await engine.close()
