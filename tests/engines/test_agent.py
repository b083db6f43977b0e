"""An agent by itself: whom it believes, and what it makes use of on its node."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from trainshed.core.names import JobUid
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.remote import agent, node_directory
from trainshed.engines.remote.credentials import Credential
from trainshed.engines.remote.greeting import NotAdmitted
from trainshed.engines.remote.messages import AgentDocument


class _Refusing:
    """A service that knows the agent no more."""

    async def dial(self) -> Any:
        raise NotAdmitted("not admitted")


@pytest.mark.anyio
async def test_an_agent_that_the_service_knows_no_more_ends_at_once(tmp_path: Path) -> None:
    """After a partition its replicas run elsewhere: it does not wait until its lease is over."""
    document = AgentDocument(
        credential=cast("Credential", None),
        job_uid=JobUid(1),
        attempt=1,
        node="a",
        address="127.0.0.1",
        directory=str(tmp_path),
        lease=600.0,
    )
    ran = agent.Agent(
        document, LocalEngine(tmp_path / "own"), cast("Any", _Refusing()), "127.0.0.1"
    )
    async with asyncio.timeout(30):
        await ran.run()


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_directory_that_others_could_have_made_is_not_used(tmp_path: Path, trap: str) -> None:
    place = tmp_path / "trainshed-0"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(OSError, match="name another directory"):
        node_directory.make_ours(place)
    assert not list(place.iterdir())


def test_a_directory_of_our_own_is_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        node_directory.make_ours(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_what_a_program_made_is_removed_however_deep_it_lies(tmp_path: Path) -> None:
    place = tmp_path / "own"
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    node_directory.remove([str(place), str(tmp_path / "gone")])
    assert not place.exists()
