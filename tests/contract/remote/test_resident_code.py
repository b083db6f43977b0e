"""Processes of Pods whose image has the agent's code, or other code, or none (docs/adr/0115)."""

import os
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.contract.remote.test_content_bootstrap import PYTHON
from trainshed.engines.kubernetes.build import entry
from trainshed.engines.remote.cluster import ProcessFacts
from trainshed.engines.remote.content import baked, resident
from trainshed.engines.remote.content.bootstrap import AgentCode, Bootstrap
from trainshed.engines.remote.opening import BEGIN, TAKEN

DOCUMENT = b"12 0 0\n" + zlib.compress(b"none")
"""Whoever has taken it finds that it is no agent's."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it has the code, not compiled."""
    directory = tmp_path_factory.mktemp("image") / "agent"
    baked.lay_down(directory)
    return directory


@pytest.fixture(scope="module")
def code() -> AgentCode:
    return AgentCode.collect()


def converse(directory: Path, code: AgentCode, node: Path) -> tuple[bytes, bytes, str]:
    """What a Pod's process says that it has; what it says then; its error output."""
    argv = (*entry(PYTHON)[:-1], str(directory))
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env={}
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        said = process.stdout.readline()
        has, _, _ = said.removeprefix(resident.CODE).decode().strip().partition(" ")
        given = Bootstrap(code, PYTHON, str(node)).parcel(DOCUMENT, has) + BEGIN
        out, errors = process.communicate(given, timeout=60)
    return said, out, errors.decode()


def hosts_of(name: str) -> list[str]:
    """Lines of this machine's hosts file with that name."""
    return [line for line in Path("/etc/hosts").read_text().splitlines() if name in line.split()]


def test_code_that_is_there_is_not_sent(code: AgentCode, image: Path, tmp_path: Path) -> None:
    assert Bootstrap(code, "", "").parcel(DOCUMENT, code.content) == resident.KNOWN + DOCUMENT
    said, out, errors = converse(image, code, tmp_path / "node")
    word, content, facts = said.decode().split(" ", 2)
    assert (word, content, out) == ("code", code.content, TAKEN)
    told = msgspec.json.decode(facts, type=ProcessFacts)
    assert told.named == os.access("/etc/hosts", os.W_OK)
    assert told.address in {"", *(line.split()[0] for line in hosts_of(os.uname().nodename))}
    assert "ValueError: the agent's document cannot be read" in errors
    assert f"{image}/code/trainshed/engines/remote/agent_process.py" in errors
    assert not (tmp_path / "node").exists()


def test_other_code_than_is_there_is_sent_and_runs(
    code: AgentCode, image: Path, tmp_path: Path
) -> None:
    """An image of another version of the service."""
    code = replace(code, content="another")
    _, out, errors = converse(image, code, tmp_path / "node")
    assert out == TAKEN
    assert f"{tmp_path}/node/code/{code.digest}/trainshed/engines/remote/agent_process.py" in errors


def test_where_no_code_is_it_is_sent(code: AgentCode, tmp_path: Path) -> None:
    said, out, errors = converse(tmp_path / "none", code, tmp_path / "node")
    assert (said, out) == (b"code\n", TAKEN)
    assert f"{tmp_path}/node/code/" in errors
